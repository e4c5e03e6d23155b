// The choice among many blocks against a sort of all of them.
#include "backend_cuda/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/device_memory.h"
#include "backend_cuda/device_harness.h"

namespace monolayer::test {
namespace {

// Ascending ids of the blocks that count most: the last ones, the nearest most; the first ones;
// then the largest score, the lower id among equals.
std::vector<std::int32_t> chosen(const std::vector<float>& scores, const Choice& choice) {
  std::vector<float> best(static_cast<std::size_t>(choice.blocks));
  const int per_block = choice.block_size / 16;
  for (int b = 0; b < choice.blocks; ++b) {
    float most = -std::numeric_limits<float>::infinity();
    for (int g = per_block * b; g < std::min(per_block * (b + 1), choice.last_group + 1); ++g)
      most = std::max(most, scores[static_cast<std::size_t>(g)]);
    best[static_cast<std::size_t>(b)] = most;
  }
  const auto forced = [&](std::int32_t b) {
    return b >= choice.blocks - choice.local_blocks ? 2 : b < choice.init_blocks ? 1 : 0;
  };
  std::vector<std::int32_t> ids(static_cast<std::size_t>(choice.blocks));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    if (forced(a) != forced(b)) return forced(a) > forced(b);
    if (forced(a) == 2) return a > b;
    return best[static_cast<std::size_t>(a)] > best[static_cast<std::size_t>(b)];
  });
  ids.resize(static_cast<std::size_t>(choice.topk));
  std::sort(ids.begin(), ids.end());
  return ids;
}

// The score of block b of n.
struct Pattern {
  std::string name;
  float (*score)(int b, int n, std::mt19937& random);
};
const Pattern kPatterns[] = {
    {"random",
     [](int, int, std::mt19937& r) { return static_cast<float>(r() % 100000) - 50000.0F; }},
    {"few values", [](int, int, std::mt19937& r) { return static_cast<float>(r() % 3); }},
    {"equal", [](int, int, std::mt19937&) { return -1.5F; }},
    {"ascending", [](int b, int, std::mt19937&) { return static_cast<float>(b); }},
    {"descending", [](int b, int n, std::mt19937&) { return static_cast<float>(n - b); }},
    // All large ones in 15 of the 64 groups of blocks, so that the first bound holds back nothing.
    {"in few groups",
     [](int b, int, std::mt19937& r) {
       return b % 64 < 15 ? 1000.0F + static_cast<float>(r() % 100000) : 0.0F;
     }},
    {"in few groups, ascending",
     [](int b, int, std::mt19937&) {
       return b % 64 < 15 ? 1000.0F + static_cast<float>(b) : 0.0F;
     }},
    {"least", [](int, int, std::mt19937&) { return -std::numeric_limits<float>::infinity(); }},
    {"one neighbourhood",
     [](int b, int n, std::mt19937&) { return b / 40 == n / 80 ? 5.0F : -5.0F; }},
};

using Run = cudaError_t (*)(const Choice&, cudaStream_t);
void expect_a_sorts_choice(Run run, const std::string& who, const std::vector<int>& topks,
                           int block_size) {
  constexpr int kMost = 8192, kMostWanted = 32;
  const int per_block = block_size / 16;
  auto device = cuda::DeviceBuffer::create(kMost * 8 * sizeof(float), "scores");
  auto ids = cuda::DeviceBuffer::create(2 * kMostWanted * sizeof(std::int32_t), "ids");
  ASSERT_TRUE(device.ok() && ids.ok());
  std::mt19937 random(11);
  int compared = 0;
  const auto compare = [&](Choice choice, const Pattern& pattern) {
    // What lies behind the newest keys is larger than all.
    std::vector<float> scores(static_cast<std::size_t>(per_block * choice.blocks), 1e30F);
    for (int b = 0; b < choice.blocks; ++b) {
      const float score = pattern.score(b, choice.blocks, random);
      const int end = std::min(per_block * (b + 1), choice.last_group + 1);
      const int most = per_block * b + b % std::max(1, end - per_block * b);
      for (int g = per_block * b; g < end; ++g)
        scores[static_cast<std::size_t>(g)] = g == most ? score : score - 7.0F;
    }
    ASSERT_EQ(cudaMemcpy(device->as<float>(), scores.data(), scores.size() * sizeof(float),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    const std::vector<std::int32_t> want = chosen(scores, choice);
    for (choice.warps = 8; choice.warps <= 16; choice.warps += 8) {
      std::vector<std::int32_t> got(want.size() * 16 / static_cast<std::size_t>(choice.warps));
      ASSERT_EQ(cudaMemset(choice.ids, 0xFF, got.size() * 4), cudaSuccess);
      ASSERT_EQ(run(choice, nullptr), cudaSuccess);
      ASSERT_EQ(cudaMemcpy(got.data(), choice.ids, got.size() * 4, cudaMemcpyDeviceToHost),
                cudaSuccess);
      for (auto at = got.begin(); at != got.end(); at += choice.topk, ++compared)
        ASSERT_EQ(std::vector(at, at + choice.topk), want)
            << pattern.name << ", " << choice.topk << " of " << choice.blocks << " blocks, "
            << choice.warps << " warps";
    }
  };
  for (const int topk : topks) {
    for (const int blocks : {64, 65, 192, 193, 256, 257, 511, 512, 513, 1023, 1024, 1025, 2048,
                             2049, 4095, 4096, 8191, 8192}) {
      for (const Pattern& pattern : kPatterns) {
        for (const auto& [init, local] : {std::pair{0, 1}, {1, 2}, {0, 16}})
          compare({.scores = device->as<float>(),
                   .topk = topk,
                   .block_size = block_size,
                   .blocks = blocks,
                   .last_group = per_block * blocks - 1 - blocks % per_block,
                   .init_blocks = init,
                   .local_blocks = local,
                   .warps = 16,
                   .ids = ids->as<std::int32_t>()},
                  pattern);
      }
    }
  }
  std::printf("%s: %d choices\n", who.c_str(), compared);
}

TEST(CudaChoice, OfManyBlocksIsThatOfASort) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  expect_a_sorts_choice(run_choice, "kernels for MiniMax-M3", {16}, 128);
}

TEST(CudaChoice, OfTheKernelsForAnyShapeToo) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  for (const int block_size : {16, 64, 128})
    expect_a_sorts_choice(run_choice_any, "any, blocks of " + std::to_string(block_size),
                          {1, 4, 32}, block_size);
}

}  // namespace
}  // namespace monolayer::test

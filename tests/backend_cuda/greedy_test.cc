// Likeliest tokens chosen on the device: those of the host over the same logits, ties and all.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/likeliest.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/greedy.h"
#include "backend/cuda/random_model.h"
#include "backend_cpu/tied_model.h"
#include "backend_cuda/device_harness.h"

namespace monolayer::test {
namespace {

// The kernel over logits of few different values, some of them no numbers.
TEST(CudaGreedy, KeysAreTheHostsKeys) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  std::mt19937 random(5);
  for (const std::int64_t vocab : {1, 31, 4096, 50016, 200064}) {
    std::vector<float> logits(static_cast<std::size_t>(cuda::kMaxRows * vocab));
    const float values[] = {-3, -0.0F, 0, 2.5F, std::numeric_limits<float>::denorm_min()};
    for (float& v : logits) v = values[random() % 5];
    for (std::int64_t r = 0; r < 4; ++r) {  // rows 0 to 3 of negative ones, or all zeros
      for (std::int64_t i = 0; i < vocab; ++i)
        logits[static_cast<std::size_t>(r * vocab + i)] =
            r < 2 ? -1 - static_cast<float>(random() % 9) : (i % 3 == 0 ? 0.0F : -0.0F);
    }
    const float inf = std::numeric_limits<float>::infinity();
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), inf, -inf}) {
      const std::int64_t row = 13 + (bad == inf ? 1 : bad == -inf ? 2 : 0);
      for (int i = 0; i < 3; ++i)
        logits[static_cast<std::size_t>(row * vocab +
                                        static_cast<std::int64_t>(random()) % vocab)] = bad;
    }
    auto device = cuda::DeviceBuffer::create(logits.size() * 4, "logits");
    auto best = cuda::DeviceBuffer::create(cuda::kMaxRows * 8, "keys");
    auto step = cuda::DeviceBuffer::create(sizeof(cuda::Step), "step");
    ASSERT_TRUE(device.ok() && best.ok() && step.ok());
    ASSERT_EQ(
        cudaMemcpy(device->as<float>(), logits.data(), logits.size() * 4, cudaMemcpyHostToDevice),
        cudaSuccess);
    for (int rows = 0; rows <= cuda::kMaxRows; ++rows) {
      cuda::Step host{};
      host.rows = cuda::kMaxRows;
      host.logit_rows = rows;
      std::vector<std::uint64_t> keys(cuda::kMaxRows, 1);
      cudaMemcpy(step->as<cuda::Step>(), &host, sizeof host, cudaMemcpyHostToDevice);
      cudaMemset(best->as<std::uint64_t>(), 0, cuda::kMaxRows * 8);
      const int most = rows <= 1 ? 1 : rows <= 4 ? 4 : rows <= 8 ? 8 : 16;
      ASSERT_EQ(cuda::choose_greedy(step->as<cuda::Step>(), device->as<float>(), most,
                                    static_cast<int>(vocab), best->as<std::uint64_t>(), nullptr),
                cudaSuccess);
      ASSERT_EQ(cudaMemcpy(keys.data(), best->as<std::uint64_t>(), cuda::kMaxRows * 8,
                           cudaMemcpyDeviceToHost),
                cudaSuccess);
      for (int r = 0; r < cuda::kMaxRows; ++r) {
        const auto row = std::span(logits).subspan(static_cast<std::size_t>(r * vocab),
                                                   static_cast<std::size_t>(vocab));
        ASSERT_EQ(keys[static_cast<std::size_t>(r)], r < rows ? cpu::likeliest_of(row, 0) : 0)
            << "row " << r << " of " << rows << ", vocabulary " << vocab;
      }
    }
  }
}

struct Rows {
  std::vector<std::vector<std::int32_t>> tokens, pages;
  std::vector<cpu::StepSequence> sequences;
  // `count` rows of as many sequences, every fourth of them with two rows.
  Rows(int count, std::int64_t vocab) {
    for (int r = 0, s = 0; r < count; ++s) {
      const int own = s % 4 == 3 && r + 1 < count ? 2 : 1;
      auto& ids = tokens.emplace_back();
      for (int i = 0; i < own; ++i)
        ids.push_back(static_cast<std::int32_t>((5 + 977 * (r + i)) % vocab));
      pages.push_back({s});
      r += own;
    }
    for (std::size_t s = 0; s < tokens.size(); ++s)
      sequences.push_back({.tokens = tokens[s],
                           .start = 0,
                           .pages = pages[s],
                           .logit_rows = static_cast<std::int64_t>(tokens[s].size())});
  }
  void set_greedy(unsigned mask) {
    for (std::size_t s = 0; s < sequences.size(); ++s)
      sequences[s].greedy = (mask >> s % 16 & 1U) != 0;
  }
};

// Steps of 1 to 20 rows in several mixes, against the logits of all rows of the same chain.
void expect_ids_of_the_logits(cpu::Native& native, cpu::CachePool& pool, std::int64_t vocab,
                              bool must_tie, const std::string& what) {
  std::int64_t ties = 0, results = 0;
  for (const int count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 20}) {
    Rows rows(count, vocab);
    std::vector<float> all, logits;
    Recorder sink;
    Status status = native.step(rows.sequences, pool, all, nullptr);
    ASSERT_TRUE(status.ok()) << what << ": " << status.to_string();
    ASSERT_EQ(static_cast<std::int64_t>(all.size()), count * vocab);
    for (const unsigned mask : {0xFFFFU, 0x5555U, 0xAAAAU, 0x0001U, 0xFF00U, 0U}) {
      rows.set_greedy(mask);
      for (m3::TraceSink* trace :
           {static_cast<m3::TraceSink*>(nullptr), static_cast<m3::TraceSink*>(&sink)}) {
        if (trace != nullptr && count != 5) continue;
        status = native.step(rows.sequences, pool, logits, trace);
        ASSERT_TRUE(status.ok()) << what << ": " << status.to_string();
        std::vector<float> want;
        std::vector<std::int32_t> ids;
        std::int64_t at = 0;
        for (const cpu::StepSequence& s : rows.sequences) {
          for (std::int64_t r = 0; r < s.logit_rows; ++r, ++at) {
            const auto row = std::span(all).subspan(static_cast<std::size_t>(at * vocab),
                                                    static_cast<std::size_t>(vocab));
            if (!s.greedy) {
              want.insert(want.end(), row.begin(), row.end());
              continue;
            }
            ids.push_back(first_largest(row));
            const float best = row[static_cast<std::size_t>(ids.back())];
            ties += std::count(row.begin(), row.end(), best) > 1 ? 1 : 0;
            ++results;
          }
        }
        const auto got = native.greedy_ids();
        ASSERT_EQ(std::vector(got.begin(), got.end()), ids)
            << what << ", " << count << " rows, mix " << mask;
        ASSERT_EQ(logits.size(), want.size());
        ASSERT_TRUE(want.empty() || std::memcmp(logits.data(), want.data(), want.size() * 4) == 0)
            << what << ", " << count << " rows, mix " << mask;
      }
    }
  }
  std::printf("%s: %ld likeliest tokens, %ld with ties\n", what.c_str(), static_cast<long>(results),
              static_cast<long>(ties));
  EXPECT_TRUE(!must_tie || ties == results);
}

TEST(CudaGreedy, IdsOfTheLogitsWithPlantedTies) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  const TiedModel model(nano_config());
  for (const int ranks : {1, 2}) {
    for (const cuda::Path path : {cuda::Path::kNative, cuda::Path::kMono}) {
      cuda::NativeOptions options;
      options.path = path;
      options.virtual_ranks = ranks;
      Device device(model.config, model.weights, {}, options);
      expect_ids_of_the_logits(
          device.native(), device.pool(), model.config.vocab_size, true,
          std::to_string(ranks) + " ranks, " + (path == cuda::Path::kMono ? "fused" : "native"));
    }
  }
}

// A head of full size: 200,064 tokens, and rank 0 of four standing in for all, whose shards are
// equal: every row's best is there four times.
TEST(CudaGreedy, IdsOfTheLogitsOfTheModelsVocabulary) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  for (const int stand_in : {1, 4}) {
    const m3::ModelConfig config = cuda::m3_config(0, 1);
    const auto team = *cpu::ThreadTeam::create({.threads = 4});
    cuda::NativeOptions options;
    options.team = team.get();
    auto chain = cuda::create_random(config, {.seed = 7, .stand_in = stand_in}, options);
    ASSERT_TRUE(chain.ok()) << chain.status().to_string();
    const auto pool = *cpu::CachePool::reserve(config, cuda::m3_caches(), 20);
    expect_ids_of_the_logits(**chain, *pool, config.vocab_size, stand_in == 4,
                             "full vocabulary, share of " + std::to_string(stand_in));
    EXPECT_EQ((*chain)->kernel_family(), "kernels for MiniMax-M3");
  }
}

}  // namespace
}  // namespace monolayer::test

// The reference when memory runs out, at every allocation it makes, and with keys that are NaN.
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "m3/reference.h"
#include "oracle_case.h"

namespace {
long allocations_left = -1;  // the one after these fails, those after it do not; < 0: none fails
}  // namespace

// Not inlined: seen together with a delete, malloc and free would look like a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (allocations_left >= 0 && allocations_left-- == 0) return nullptr;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace monolayer::m3 {
namespace {

TEST(ReferenceMemory, RunningOutAnywhereLeavesTheSequenceAsItWas) {
  auto oracle = OracleCase::load("tiny");
  ASSERT_TRUE(oracle.ok()) << oracle.status().to_string();
  const std::span<const std::int32_t> ids(oracle->input_ids);
  Reference calm(oracle->config, oracle->weights);
  ASSERT_TRUE(calm.forward(ids.first(70), 0, nullptr).ok());
  const auto want = calm.forward(ids.subspan(70, 6), 6, nullptr);
  ASSERT_TRUE(want.ok());

  long failures = 0;
  Reference disturbed(oracle->config, oracle->weights);
  ASSERT_TRUE(disturbed.forward(ids.first(70), 0, nullptr).ok());
  for (long limit = 0;; limit = limit * 5 / 4 + 1) {
    allocations_left = limit;
    const auto got = disturbed.forward(ids.subspan(70, 6), 6, nullptr);
    allocations_left = -1;
    if (got.ok()) break;
    ++failures;
    ASSERT_EQ(got.status().code(), Code::kResourceExhausted) << got.status().to_string();
    ASSERT_EQ(disturbed.position(), 70);
    // The same step with enough memory, in a reference that failed before.
    if (failures % 4 != 0) continue;
    Reference copy(oracle->config, oracle->weights);
    ASSERT_TRUE(copy.forward(ids.first(70), 0, nullptr).ok());
    allocations_left = limit;
    EXPECT_FALSE(copy.forward(ids.subspan(70, 6), 6, nullptr).ok());
    allocations_left = -1;
    const auto again = copy.forward(ids.subspan(70, 6), 6, nullptr);
    ASSERT_TRUE(again.ok());
    ASSERT_EQ(*again, *want) << "after failing at allocation " << limit;
  }
  EXPECT_GT(failures, 10);
  EXPECT_EQ(disturbed.position(), 76);
}

struct Selections : TraceSink {
  void hidden(std::int64_t, std::int64_t, std::span<const float>) override {}
  void blocks(std::int64_t layer, std::int64_t row, std::int64_t, std::span<const std::int32_t> ids,
              std::span<const float> scores) override {
    ++seen;
    const auto existing = static_cast<std::int32_t>(scores.size());
    for (const float score : scores) EXPECT_EQ(score, -1e30F) << layer << " " << row;
    // Ties: the lowest ids, and the row's own block.
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      EXPECT_EQ(ids[i], static_cast<std::int32_t>(i)) << layer << " " << row;
    }
    EXPECT_EQ(ids.back(), existing - 1);
  }
  long seen = 0;
};

// Index keys that are NaN choose badly, never a block that does not exist, and reach no logit.
TEST(ReferenceMemory, NanIndexKeysCountBelowEveryScore) {
  auto oracle = OracleCase::load("tiny");
  ASSERT_TRUE(oracle.ok()) << oracle.status().to_string();
  ModelWeights weights = oracle->weights;
  std::vector<std::vector<std::byte>> storage;
  for (LayerWeights& layer : weights.layers) {
    TensorView& norm = layer.index_k_norm;
    if (norm.data == nullptr) continue;
    auto& copy = storage.emplace_back(norm.data, norm.data + norm.bytes);
    const bf16_t nan = 0x7fc0;
    std::memcpy(copy.data() + 2, &nan, sizeof nan);
    norm.data = copy.data();
  }
  ASSERT_FALSE(storage.empty());
  Reference reference(oracle->config, weights);
  Selections sink;
  const auto logits = reference.forward(oracle->input_ids, 4, &sink);
  ASSERT_TRUE(logits.ok());
  EXPECT_GT(sink.seen, 100);
  for (const float value : *logits) ASSERT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace monolayer::m3

// A long context is read only where it is selected: bytes counted, and a step proves that the rest
// of the pages is never touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "backend/cpu/cache_insert.h"
#include "backend_cpu/native_harness.h"
#include "backend_cpu/random_model.h"

namespace monolayer::test {
namespace {

std::byte* row(const cpu::Matrix& page, std::int64_t slot) {
  return static_cast<std::byte*>(const_cast<void*>(page.data)) + slot * page.row_bytes;
}

void fill_context(const m3::ModelConfig& c, cpu::CachePool& pool,
                  const std::vector<std::int32_t>& pages, std::int64_t tokens) {
  std::mt19937 random(4);
  std::uniform_real_distribution<float> uniform(-1.5F, 1.5F);
  const DType dtype = pool.options().kv;
  std::vector<float> values(static_cast<std::size_t>(std::max(c.head_dim, c.index_dim)));
  const auto store = [&](std::byte* at, std::int64_t n) {
    for (float& value : values) value = uniform(random);
    cpu::store_entry(dtype, pool.options().k_scale, values.data(), n, at);
  };
  for (std::int64_t layer = 0; layer < c.num_layers; ++layer) {
    for (std::int64_t p = 0; p < tokens; ++p) {
      const std::int32_t page = pages[static_cast<std::size_t>(p / m3::kPageTokens)];
      for (std::int64_t g = 0; g < c.num_kv_heads; ++g) {
        store(row(pool.k_page(layer, page, g), p % m3::kPageTokens), c.head_dim);
        store(row(pool.v_page(layer, page, g), p % m3::kPageTokens), c.head_dim);
      }
      if (pool.layer(layer).index == nullptr) continue;
      store(row(pool.index_page(layer, page), p % m3::kPageTokens), c.index_dim);
    }
  }
}

class Traffic : public testing::TestWithParam<bool> {};

TEST_P(Traffic, HundredThousandTokensReadOnlySelectedBlocks) {
  constexpr std::int64_t kContext = 100'000;
  m3::ModelConfig c = nano_config();
  c.layers = {{false, false}, {true, true}, {true, true}};
  c.num_layers = 3;
  RandomModel model(c, {.experts = WeightFormat::kMXFP4, .shared = WeightFormat::kMXFP4}, 5);
  EngineOptions options;
  options.pool_pages = kContext / m3::kPageTokens + 2;
  options.threads = 2;
  if (GetParam()) options.cache = fp8_cache();
  Engine engine(c, model.weights, options);
  const auto pages =
      page_table(kContext + 1, static_cast<std::int32_t>(options.pool_pages - 1), -1);
  fill_context(c, *engine.pool, pages, kContext);

  const std::vector<std::int32_t> token = {7};
  cpu::StepSequence sequence{.tokens = token, .start = kContext, .pages = pages, .logit_rows = 1};
  std::vector<float> logits;
  Recorder trace;
  ASSERT_TRUE(engine.native->step({&sequence, 1}, *engine.pool, logits, &trace).ok());
  const std::vector<float> first = logits;

  const std::int64_t length = kContext + 1;
  const std::int64_t value = GetParam() ? 1 : 2;
  const std::int64_t key_and_value = 2 * c.head_dim * value;
  std::int64_t selected_keys = 0;
  for (std::int64_t layer = 1; layer < c.num_layers; ++layer) {
    for (std::int64_t g = 0; g < c.num_kv_heads; ++g) {
      const auto& ids = trace.selections.at({layer, kContext, g});
      ASSERT_EQ(static_cast<std::int64_t>(ids.size()), c.topk_blocks);
      EXPECT_EQ(ids.back(), kContext / c.block_size);
      for (const std::int32_t id : ids) {
        selected_keys += std::min(c.block_size, length - id * c.block_size);
      }
    }
  }
  const cpu::Traffic& traffic = engine.native->last_traffic();
  EXPECT_EQ(traffic.kv_read, (length * c.num_kv_heads + selected_keys) * key_and_value);
  EXPECT_LE(selected_keys, 2 * c.num_kv_heads * c.topk_blocks * c.block_size);
  EXPECT_EQ(traffic.index_read, 2 * length * c.index_dim * value);
  EXPECT_EQ(traffic.cache_written, 3 * c.num_kv_heads * key_and_value + 2 * c.index_dim * value);

  // Weights: every matrix once, each chosen expert once.
  const auto bytes = [](std::int64_t rows, std::int64_t cols) { return rows * cols * 2; };
  const auto mx = [](std::int64_t rows, std::int64_t cols) {
    return rows * (cols / 2 + cols / 32);
  };
  const std::int64_t h = c.hidden_size;
  std::int64_t weights = bytes(c.vocab_size, h);
  weights += 3 * (bytes(2 * c.q_width() + 2 * c.kv_width(), h));
  weights += bytes(3 * c.dense_width, h);
  weights += 2 * (bytes(c.index_width() + c.index_dim, h) + c.num_experts * h * 4 +
                  (c.experts_per_token + 1) * (2 * mx(c.expert_width, h) + mx(h, c.expert_width)));
  EXPECT_EQ(traffic.weights, weights);

  // Poison every K and V of the sparse layers outside the selected blocks: nothing changes.
  for (std::int64_t layer = 1; layer < c.num_layers; ++layer) {
    for (std::int64_t g = 0; g < c.num_kv_heads; ++g) {
      const auto& ids = trace.selections.at({layer, kContext, g});
      for (std::int32_t block = 0; block <= kContext / c.block_size; ++block) {
        if (std::find(ids.begin(), ids.end(), block) != ids.end()) continue;
        const std::int32_t page = pages[static_cast<std::size_t>(block)];
        for (const cpu::Matrix& m :
             {engine.pool->k_page(layer, page, g), engine.pool->v_page(layer, page, g)}) {
          std::memset(row(m, 0), 0xff, static_cast<std::size_t>(m.rows * m.row_bytes));
        }
      }
    }
  }
  ASSERT_TRUE(engine.native->step({&sequence, 1}, *engine.pool, logits, nullptr).ok());
  EXPECT_EQ(first, logits);
}

// Each expert's weights count once however many rows chose it, and dense ones once per step.
TEST(TrafficPrefill, WeightsOncePerStep) {
  m3::ModelConfig c = tiny_config();
  c.experts_per_token = c.num_experts;  // every row uses every expert
  RandomModel model(c, {}, 5);
  EngineOptions options;
  options.row_tile = 16;
  Engine engine(c, model.weights, options);
  const auto tokens = random_tokens(c, 100, 2);
  run(engine, tokens, page_table(100), {1});
  const std::int64_t one = engine.native->last_traffic().weights;
  run(engine, tokens, page_table(100), {100});
  EXPECT_EQ(engine.native->last_traffic().weights, one);
  EXPECT_EQ(engine.native->total_traffic().weights, 101 * one);
}

INSTANTIATE_TEST_SUITE_P(Caches, Traffic, testing::Bool());

}  // namespace
}  // namespace monolayer::test

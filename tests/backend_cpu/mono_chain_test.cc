// Whole models with fused layers where steps allow it, changing between the paths in mid-request,
// on one rank and on several.
#include <gtest/gtest.h>

#include <string>

#include "backend/cpu/ranked.h"
#include "backend_cpu/mono_harness.h"
#include "backend_cpu/native_harness.h"

namespace monolayer::test {
namespace {

const ModelFormats kFormats{.attention = WeightFormat::kFP8PerChannel,
                            .dense = WeightFormat::kMXFP8,
                            .experts = WeightFormat::kMXFP4,
                            .shared = WeightFormat::kMXFP8,
                            .router = DType::kBF16};

// Prefills, decode rows and drafts of four rows across a page border, in turns.
const std::vector<std::int64_t> kChunks = {60, 1, 1, 30, 8, 17, 2, 4, 4, 4, 1, 40, 16, 1};

class MonoChainTest : public testing::Test {
 protected:
  MonoChainTest() : model_(eight_way_config(), kFormats, 5) {}

  Output run_as(const EngineOptions& options, bool fused, cpu::PathCounts* counts = nullptr) {
    Engine engine(model_.config, model_.weights, options);
    auto made = cpu::Native::create(model_.config, model_.weights, *engine.team, {.fused = fused});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    engine.native = std::move(made).value();
    Output out = run(engine, tokens(), page_table(kTokens, 20, -1), kChunks);
    if (counts != nullptr) *counts = engine.native->paths();
    return out;
  }
  std::vector<std::int32_t> tokens() const { return random_tokens(model_.config, kTokens, 8); }

  static constexpr std::int64_t kTokens = 215;
  RandomModel model_;
};

TEST_F(MonoChainTest, SameBitsAsNativeAcrossChangesOfPath) {
  for (const bool fp8 : {false, true}) {
    for (const int threads : {1, 2, 3}) {
      EngineOptions options;
      options.threads = threads;
      if (fp8) options.cache = fp8_cache();
      cpu::PathCounts counts;
      const Output native = run_as(options, false);
      const Output mono = run_as(options, true, &counts);
      expect_same_bits(native, mono, "fused");
      EXPECT_GT(counts.mono, 20);
      EXPECT_EQ(5, counts.native);  // 60, 30, 17, 40 and 16 rows of one sequence
      EXPECT_EQ("16 rows of one sequence, the fused path takes 8", counts.why_native);
    }
  }
}

TEST_F(MonoChainTest, SameLogitsAndSelectionsOnEveryGroupSize) {
  const Output whole = run_as({}, false);
  for (const int ranks : {2, 4, 8}) {
    for (const bool fused : {false, true}) {
      Engine engine(model_.config, model_.weights, {});
      auto made = cpu::make_ranked(model_.config, model_.weights,
                                   {.ranks = ranks, .threads = ranks, .cache = {}, .pages = 64},
                                   {.fused = fused});
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      engine.native = std::move(made).value();
      const Output out = run(engine, tokens(), page_table(kTokens, 20, -1), kChunks);
      EXPECT_EQ(whole.logits, out.logits) << ranks << " ranks";
      EXPECT_EQ(whole.trace.hidden_rows, out.trace.hidden_rows) << ranks << " ranks";
      EXPECT_EQ(whole.trace.selections, out.trace.selections) << ranks << " ranks";
    }
  }
}

// The last position there can be. All blocks but the one written are the same eight, so that the
// pool's other pages cost no memory.
TEST(MonoChain, T_K2_TheLongestContext) {
  m3::ModelConfig config = eight_way_config();
  config.max_positions = mono::kMaxContext;
  const RandomModel model(config, kFormats, 6);
  const std::int64_t pages = mono::kMaxContext / m3::kPageTokens;
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i % 8);
  table.back() = 8;
  std::vector<Output> outputs;
  for (const bool fused : {false, true}) {
    EngineOptions options;
    options.threads = 2;
    options.pool_pages = 9;
    Engine engine(config, model.weights, options);
    engine.pool = cpu::CachePool::create(config, fp8_cache(), pages).value();
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      const cpu::LayerCache& cache = engine.pool->layer(layer);
      for (std::int64_t i = 0; i < 9 * cache.page_bytes; ++i) {
        cache.k[i] = static_cast<std::byte>(i * 37 % 120);
        cache.v[i] = static_cast<std::byte>(128 + i * 41 % 120);
        if (cache.index != nullptr && i < 9 * cache.index_page_bytes) {
          cache.index[i] = static_cast<std::byte>(i * 43 % 251 % 120);
        }
      }
    }
    engine.native =
        cpu::Native::create(config, model.weights, *engine.team, {.fused = fused}).value();
    const std::vector<std::int32_t> tokens = random_tokens(config, 2, 9);
    cpu::StepSequence sequence;
    sequence.tokens = tokens;
    sequence.start = mono::kMaxContext - 2;
    sequence.pages = table;
    sequence.logit_rows = 2;
    Output& out = outputs.emplace_back();
    const Status status = engine.native->step({&sequence, 1}, *engine.pool, out.logits, &out.trace);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(engine.native->paths().mono, fused ? 1 : 0);
  }
  EXPECT_EQ(outputs[0].logits, outputs[1].logits);
  EXPECT_EQ(outputs[0].trace.hidden_rows, outputs[1].trace.hidden_rows);
  EXPECT_EQ(outputs[0].trace.selections, outputs[1].trace.selections);
  EXPECT_EQ(outputs[1].trace.selections.at({1, mono::kMaxContext - 1, 0}).back(),
            mono::kMaxContext / config.block_size - 1);
}

// A pool that takes the place of another is another one, even where only the scales tell.
TEST_F(MonoChainTest, APoolInTheOldOnesPlaceIsBoundAnew) {
  const std::vector<std::int32_t> ids = random_tokens(model_.config, 4, 12), pages{0};
  cpu::StepSequence sequence;
  sequence.tokens = ids;
  sequence.pages = pages;
  sequence.logit_rows = 4;
  const auto options = [](float scale) {
    cpu::CacheOptions cache = fp8_cache();
    cache.k_scale = cache.v_scale = scale;
    return cache;
  };
  std::vector<std::vector<float>> logits;
  for (const bool fused : {false, true}) {
    Engine engine(model_.config, model_.weights, {});
    engine.native =
        cpu::Native::create(model_.config, model_.weights, *engine.team, {.fused = fused}).value();
    const std::byte* place = nullptr;
    for (const float scale : {0.5F, 0.01F}) {
      engine.pool.reset();
      engine.pool = cpu::CachePool::create(model_.config, options(scale), 64).value();
      if (place != nullptr && place != engine.pool->layer(0).k)
        GTEST_SKIP() << "the second pool has another address";
      place = engine.pool->layer(0).k;
      std::vector<float>& out = logits.emplace_back();
      const Status status = engine.native->step({&sequence, 1}, *engine.pool, out, nullptr);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    EXPECT_EQ(engine.native->paths().mono, fused ? 2 : 0);
  }
  EXPECT_EQ(logits[0], logits[2]);
  EXPECT_EQ(logits[1], logits[3]);
  EXPECT_NE(logits[0], logits[1]);
}

TEST_F(MonoChainTest, SizesThatDoNotDivideAreRefusedByName) {
  const RandomModel narrow(tiny_config(), {}, 1);
  const auto made = cpu::make_ranked(narrow.config, narrow.weights,
                                     {.ranks = 2, .threads = 1, .cache = {}, .pages = 4}, {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(Code::kUnsupported, made.status().code());
}

}  // namespace
}  // namespace monolayer::test

// The native chain on 1, 2, 4 and 8 ranks: the same bits everywhere.
#include <gtest/gtest.h>

#include <string>

#include "backend_cpu/random_model.h"
#include "backend_cpu/rank_harness.h"
#include "oracle_case.h"

namespace monolayer::test {
namespace {

void compare_sizes(const m3::ModelConfig& config, const m3::ModelWeights& weights,
                   const EngineOptions& options, const std::vector<std::int32_t>& tokens,
                   const std::vector<std::int64_t>& chunks) {
  const RankOutput one = run_native_ranks(config, weights, 1, options, tokens, chunks);
  ASSERT_FALSE(one.entries.empty());
  int compared = 0;
  for (const int size : {2, 4, 8}) {
    if (!m3::rank_shape(config, 0, size).ok()) continue;
    const RankOutput many = run_native_ranks(config, weights, size, options, tokens, chunks);
    expect_same_ranks(one, many, ("TP " + std::to_string(size)).c_str());
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

TEST(NativeRanks, PlainWeights) {
  m3::ModelConfig config = nano_config();
  config.block_size = 32;  // 300 tokens: 10 blocks of which 4 are selected
  const RandomModel model(config, {}, 3);
  compare_sizes(model.config, model.weights, {}, random_tokens(config, 300, 5), {280, 1, 3, 16});
}

TEST(NativeRanks, QuantizedWeightsAndFp8Caches) {
  m3::ModelConfig config = nano_config();
  config.block_size = 32;
  const ModelFormats formats{.attention = WeightFormat::kFP8PerChannel,
                             .dense = WeightFormat::kMXFP8,
                             .experts = WeightFormat::kMXFP4,
                             .shared = WeightFormat::kMXFP8,
                             .router = DType::kBF16};
  const RandomModel model(config, formats, 4);
  EngineOptions options;
  options.cache = fp8_cache();
  options.threads = 2;
  compare_sizes(model.config, model.weights, options, random_tokens(config, 200, 6), {150, 1, 4});
}

TEST(NativeRanks, ReferenceCases) {
  for (const char* name : {"nano", "m3shape", "onekv", "tiny"}) {
    SCOPED_TRACE(name);
    auto loaded = OracleCase::load(name);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    std::vector<std::int32_t> tokens = loaded->input_ids;
    if (tokens.size() > 160) tokens.resize(160);
    compare_sizes(loaded->config, loaded->weights, {}, tokens, {100, 1, 16});
  }
}

}  // namespace
}  // namespace monolayer::test

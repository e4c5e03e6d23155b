// MXFP8 weights (E4M3 values, a scale for every 32 of a row, which differ) on a device: against the
// CPU's chain, and the same bits on every path, chunking and number of ranks.
#include <set>
#include <string>
#include <tuple>

#include "backend_cpu/random_model.h"
#include "backend_cuda/device_harness.h"
#include "oracle_case.h"

namespace monolayer::test {
namespace {

// Everything in MXFP8, and experts alone beside FP8 attention and MXFP4 dense layers.
const ModelFormats kAll{.attention = WeightFormat::kMXFP8,
                        .dense = WeightFormat::kMXFP8,
                        .experts = WeightFormat::kMXFP8,
                        .shared = WeightFormat::kMXFP8,
                        .router = DType::kBF16};
const ModelFormats kExperts{.attention = WeightFormat::kFP8PerChannel,
                            .dense = WeightFormat::kMXFP4,
                            .experts = WeightFormat::kMXFP8,
                            .shared = WeightFormat::kMXFP4,
                            .router = DType::kBF16};

class DeviceMXFP8 : public testing::TestWithParam<bool> {
 protected:
  DeviceMXFP8()
      : model_(nano_config(), GetParam() ? kAll : kExperts, 17),
        tokens_(random_tokens(model_.config, 200, 4)) {}
  void SetUp() override {
    if (no_device()) GTEST_SKIP() << "no CUDA device";
  }
  RandomModel model_;
  std::vector<std::int32_t> tokens_;
};

TEST_P(DeviceMXFP8, ScalesOfGroupsDiffer) {
  const m3::MlpWeights& expert = model_.weights.layers.back().experts.front();
  for (const QuantizedMatrix* m : {&expert.gate, &expert.up, &expert.down}) {
    ASSERT_EQ(WeightFormat::kMXFP8, m->format);
    std::set<std::byte> row;
    for (std::int64_t i = 0; i < m->cols / 32; ++i) row.insert(m->scale.data[i]);
    EXPECT_GE(row.size(), 3U);
  }
}

// On rows whose choices are the CPU's, and every choice but near ties is.
TEST_P(DeviceMXFP8, FollowsTheCpu) {
  Device device(model_.config, model_.weights, {}, {});
  const DeviceOutput got = device.run(tokens_, {64}, true);
  EngineOptions options;
  options.threads = 4;
  Engine engine(model_.config, model_.weights, options);
  const Output want = run(engine, tokens_, page_table(200), {64});
  std::set<std::int64_t> other;
  for (const auto& [key, ids] : want.trace.selections)
    if (got.trace.selections.at(key) != ids) other.insert(std::get<1>(key));
  for (const auto& [key, ids] : want.trace.chosen_experts)
    if (got.trace.chosen_experts.at(key) != ids) other.insert(std::get<1>(key));
  const auto vocab = static_cast<std::size_t>(model_.config.vocab_size);
  std::vector<float> kept, kept_want;
  for (std::size_t row = 0; row < tokens_.size(); ++row) {
    if (other.count(static_cast<std::int64_t>(row)) != 0) continue;
    kept.insert(kept.end(), &got.logits[row * vocab], &got.logits[row * vocab] + vocab);
    kept_want.insert(kept_want.end(), &want.logits[row * vocab], &want.logits[row * vocab] + vocab);
  }
  std::printf("logits %.4f from the CPU's on %zu of %zu rows\n", relative_l2(kept, kept_want),
              kept.size() / vocab, tokens_.size());
  EXPECT_LE(relative_l2(kept, kept_want), 1.5e-2);
  EXPECT_GE(2 * kept.size(), tokens_.size() * vocab);
}

TEST_P(DeviceMXFP8, SameBitsOnEveryPath) {
  Device device(model_.config, model_.weights, {}, {});
  const DeviceOutput want = device.run(tokens_, {512}, false);
  ASSERT_FALSE(want.logits.empty());
  for (const int ranks : {1, 2, 4, 8}) {
    for (const auto path : {cuda::Path::kNative, cuda::Path::kMono}) {
      Device other(model_.config, model_.weights, {}, {.path = path, .virtual_ranks = ranks});
      const std::string what =
          std::to_string(ranks) + (path == cuda::Path::kMono ? " ranks, fused" : " ranks, native");
      EXPECT_TRUE(want.logits == other.run(tokens_, {1}, false).logits) << what;
      EXPECT_TRUE(want.logits == other.run(tokens_, {13, 1, 2, 16, 7, 5, 4}, false).logits)
          << what << ", ragged";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceMXFP8, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "Everywhere" : "Experts");
});

}  // namespace
}  // namespace monolayer::test

// The native chain against the float32 reference on random models of every format and shape.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "backend_cpu/native_harness.h"
#include "backend_cpu/random_model.h"
#include "m3/reference.h"

namespace monolayer::test {
namespace {

double relative_l2(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    norm += double{want[i]} * want[i];
  }
  return std::sqrt(difference / norm);
}

struct Case {
  const char* name;
  m3::ModelConfig config;
  ModelFormats formats;
  std::int64_t tokens;
  bool fp8 = false;
  const RotaryBytes* rotary = nullptr;
};

// Angles that no rope_theta gives, for every position of the model.
const RotaryBytes& turning() {
  static const RotaryBytes bytes(tiny_config(), DType::kBF16, 3);
  return bytes;
}

std::vector<Case> cases() {
  const auto all = [](WeightFormat format) {
    return ModelFormats{.attention = format, .dense = format, .experts = format, .shared = format};
  };
  m3::ModelConfig odd = tiny_config();  // nothing is a multiple of 32
  odd.hidden_size = 76;
  odd.head_dim = 20;
  odd.index_dim = 18;
  odd.rotary_dim = 10;
  odd.dense_width = 90;
  odd.expert_width = 50;
  odd.shared_width = 14;
  m3::ModelConfig forced = tiny_config();
  forced.init_blocks = 1;
  forced.local_blocks = 2;
  forced.index_dim = 64;
  m3::ModelConfig no_shared = tiny_config();
  no_shared.shared_width = 0;
  no_shared.routing_bias = false;
  m3::ModelConfig shared = tiny_config();
  shared.shared_weight = 1.75F;
  m3::ModelConfig scaled = tiny_config();
  scaled.softmax_scale = 0.4F;
  m3::ModelConfig one_kv = tiny_config();
  one_kv.num_kv_heads = one_kv.index_heads = 1;
  one_kv.block_size = 128;
  one_kv.topk_blocks = 2;
  return {{"Plain", tiny_config(), {}, 150},
          {"Mxfp4", tiny_config(), all(WeightFormat::kMXFP4), 150},
          {"Mxfp8", tiny_config(), all(WeightFormat::kMXFP8), 150},
          {"Fp8PerChannel", tiny_config(), all(WeightFormat::kFP8PerChannel), 150},
          {"Bf16Router", tiny_config(), {.router = DType::kBF16}, 90},
          {"OddWidths", odd, {}, 150},
          {"ForcedBlocks", forced, {}, 150},
          {"NoSharedExpert", no_shared, {}, 90},
          {"OneKvHead", one_kv, {}, 300},
          {"Fp8Cache", tiny_config(), {}, 150, true},
          {"SharedWeight", shared, {}, 150},
          {"SoftmaxScale", scaled, {}, 150},
          {"AnglesOfTheCaller", tiny_config(), {}, 150, false, &turning()}};
}

class AgainstReference : public testing::TestWithParam<Case> {};

// Hidden rows and logits, row by row. Rows after a different choice (of experts or of blocks, where
// scores nearly tie) may differ more: the median is held to the bound, and few rows may miss it.
TEST_P(AgainstReference, HiddenAndLogits) {
  const Case& test = GetParam();
  RandomModel model(test.config, test.formats, 5);
  const auto tokens = random_tokens(model.config, test.tokens, 6);
  const m3::RotaryTable rotary = test.rotary != nullptr ? test.rotary->table() : m3::RotaryTable{};
  m3::Reference reference(model.config, model.weights, rotary);
  Recorder expected;
  const auto logits = reference.forward(tokens, test.tokens, &expected);
  ASSERT_TRUE(logits.ok()) << logits.status().to_string();

  EngineOptions options;
  if (test.fp8) options.cache = fp8_cache();
  options.rotary = rotary;
  Engine engine(model.config, model.weights, options);
  const Output out = run(engine, tokens, page_table(test.tokens), {100, 1});
  const double bound = test.fp8 ? 0.1 : 1.5e-2;
  std::vector<double> errors;
  for (const auto& [key, values] : expected.hidden_rows) {
    errors.push_back(relative_l2(out.trace.hidden_rows.at(key), values));
  }
  const auto wide =
      std::count_if(errors.begin(), errors.end(), [&](double e) { return e > bound; });
  std::sort(errors.begin(), errors.end());
  const double median = errors[errors.size() / 2];
  const double total = relative_l2(out.logits, *logits);
  RecordProperty("logits_relative_l2", std::to_string(total));
  std::printf("%s: logits %.4g, hidden median %.4g, largest %.4g, %ld of %zu rows above %g\n",
              test.name, total, median, errors.back(), static_cast<long>(wide), errors.size(),
              bound);
  EXPECT_LT(median, bound / 2);
  EXPECT_LT(static_cast<double>(wide), 0.1 * static_cast<double>(errors.size()));
}

// The reference itself: twice the weight of the shared expert is a shared expert whose down
// projection is doubled, and a table of the computed angles is no other model.
TEST(Reference, SharedWeightScaleAndAnglesOfTheCaller) {
  RandomModel model(tiny_config(), {}, 8);
  const auto tokens = random_tokens(model.config, 90, 2);
  const auto logits = [&](const m3::RotaryTable& rotary) {
    return m3::Reference(model.config, model.weights, rotary).forward(tokens, 90, nullptr).value();
  };
  const std::vector<float> plain = logits({});
  model.config.shared_weight = 2;
  const std::vector<float> doubled = logits({});
  model.config.shared_weight = 1;
  EXPECT_NE(plain, doubled);
  for (m3::LayerWeights& layer : model.weights.layers) {
    if (layer.shared.down.empty()) continue;
    const QuantizedMatrix& down = layer.shared.down;
    auto* values = reinterpret_cast<bf16_t*>(const_cast<std::byte*>(down.weight.data));
    for (std::int64_t i = 0; i < down.rows * down.cols; ++i) {
      values[i] = f32_to_bf16(2 * bf16_to_f32(values[i]));
    }
  }
  EXPECT_EQ(doubled, logits({}));

  const m3::Rope rope(model.config.rope_theta, model.config.rotary_dim);
  std::vector<float> angles(static_cast<std::size_t>(90 * model.config.rotary_dim));
  for (std::int64_t p = 0; p < 90; ++p) {
    float* row = &angles[static_cast<std::size_t>(p * model.config.rotary_dim)];
    rope.angles(p, row, row + rope.pairs());
  }
  const m3::RotaryTable table{angles.data(), DType::kF32, 90, model.config.rotary_dim * 4};
  EXPECT_EQ(doubled, logits(table));
  EXPECT_NE(doubled, logits(turning().table()));

  model.config.softmax_scale = 1.0F / std::sqrt(static_cast<float>(model.config.head_dim));
  EXPECT_EQ(doubled, logits({}));
  model.config.softmax_scale *= 2;
  EXPECT_NE(doubled, logits({}));
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstReference, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace monolayer::test

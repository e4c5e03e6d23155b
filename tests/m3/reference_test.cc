#include "m3/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "m3/reference_math.h"
#include "oracle_case.h"

namespace monolayer::m3 {
namespace {

// Everything a forward pass shows, by layer.
struct Recorder : TraceSink {
  std::map<std::int64_t, std::map<std::int64_t, std::vector<float>>> hiddens;  // layer, row
  std::map<std::int64_t, std::map<std::pair<std::int64_t, std::int64_t>,
                                  std::pair<std::vector<std::int32_t>, std::vector<float>>>>
      selections;  // layer, (row, head)

  void hidden(std::int64_t layer, std::int64_t row, std::span<const float> values) override {
    hiddens[layer][row].assign(values.begin(), values.end());
  }
  void blocks(std::int64_t layer, std::int64_t row, std::int64_t head,
              std::span<const std::int32_t> ids, std::span<const float> scores) override {
    selections[layer][{row, head}] = {{ids.begin(), ids.end()}, {scores.begin(), scores.end()}};
  }
};

class ReferenceOracle : public ::testing::TestWithParam<const char*> {};

TEST_P(ReferenceOracle, HiddenStatesLogitsAndBlocksEqual) {
  auto loaded = OracleCase::load(GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const OracleCase& oracle = *loaded;
  Reference reference(oracle.config, oracle.weights);
  Recorder seen;
  const auto count = static_cast<std::int64_t>(oracle.input_ids.size());
  auto logits = reference.forward(oracle.input_ids, count, &seen);
  ASSERT_TRUE(logits.ok()) << logits.status().to_string();

  std::vector<float> chosen;
  for (const std::int32_t row : oracle.rows) {
    const auto* begin = logits->data() + row * oracle.config.vocab_size;
    chosen.insert(chosen.end(), begin, begin + oracle.config.vocab_size);
  }
  const double logit_error = relative_l2(chosen, oracle.floats("logits"));
  EXPECT_LE(logit_error, 2e-5);
  RecordProperty("logits", std::to_string(logit_error));
  double worst = logit_error;
  for (std::int64_t layer = 0; layer <= oracle.config.num_layers; ++layer) {
    std::vector<float> rows;
    for (const std::int32_t row : oracle.rows) {
      const auto& values = seen.hiddens[layer][row];
      rows.insert(rows.end(), values.begin(), values.end());
    }
    const double error = relative_l2(rows, oracle.floats("hidden." + std::to_string(layer)));
    EXPECT_LE(error, 2e-5) << "hidden." << layer;
    worst = std::max(worst, error);
  }
  std::printf("%s: largest relative L2 %.2e\n", GetParam(), worst);

  for (std::int64_t layer = 0; layer < oracle.config.num_layers; ++layer) {
    if (!oracle.config.layers[static_cast<std::size_t>(layer)].sparse_attention) continue;
    const std::vector<std::int32_t> expected = oracle.ints("blocks." + std::to_string(layer));
    const std::int64_t heads = oracle.config.index_heads, k = oracle.config.topk_blocks;
    ASSERT_EQ(expected.size(), static_cast<std::size_t>(count * heads * k));
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const auto* begin = expected.data() + (row * heads + head) * k;
        std::set<std::int32_t> want(begin, begin + k);
        want.erase(-1);
        const auto& [ids, scores] = seen.selections[layer][{row, head}];
        const std::set<std::int32_t> got(ids.begin(), ids.end());
        if (got == want) continue;
        // A difference counts as equal only between blocks whose scores tie.
        ASSERT_EQ(got.size(), want.size());
        std::vector<std::int32_t> only_got, only_want;
        std::set_difference(got.begin(), got.end(), want.begin(), want.end(),
                            std::back_inserter(only_got));
        std::set_difference(want.begin(), want.end(), got.begin(), got.end(),
                            std::back_inserter(only_want));
        for (std::size_t i = 0; i < only_got.size(); ++i) {
          const float a = scores[static_cast<std::size_t>(only_got[i])];
          const float b = scores[static_cast<std::size_t>(only_want[i])];
          std::printf("tie: layer %ld row %ld head %ld: %d (%g) for %d (%g)\n",
                      static_cast<long>(layer), static_cast<long>(row), static_cast<long>(head),
                      only_got[i], a, only_want[i], b);
          EXPECT_LE(std::fabs(a - b), 1e-6F * std::max(1.0F, std::fabs(a)));
        }
      }
    }
  }
}

TEST_P(ReferenceOracle, GreedyContinuationIsEqualUpToTheFirstSmallGap) {
  auto loaded = OracleCase::load(GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const OracleCase& oracle = *loaded;
  if (oracle.greedy.empty()) GTEST_SKIP() << "no continuation stored";
  Reference reference(oracle.config, oracle.weights);
  std::vector<std::int32_t> next(
      oracle.input_ids.begin(),
      oracle.input_ids.begin() + static_cast<std::ptrdiff_t>(oracle.input_ids.size() / 2));
  std::size_t compared = 0;
  for (std::size_t step = 0; step < oracle.greedy.size() && oracle.greedy_gap[step] > 0.02F;
       ++step) {
    auto logits = reference.forward(next, 1, nullptr);
    ASSERT_TRUE(logits.ok());
    const auto best = std::max_element(logits->begin(), logits->end()) - logits->begin();
    ASSERT_EQ(best, oracle.greedy[step]) << "step " << step;
    next = {static_cast<std::int32_t>(best)};
    ++compared;
  }
  std::printf("%s: %zu of %zu steps compared\n", GetParam(), compared, oracle.greedy.size());
}

INSTANTIATE_TEST_SUITE_P(Cases, ReferenceOracle,
                         ::testing::Values("tiny", "m3shape", "onekv", "mxfp4", "nano", "local2",
                                           "mxfp8", "mixed"));

TEST(Reference, ChunkingDoesNotChangeAnything) {
  auto oracle = OracleCase::load("tiny");
  ASSERT_TRUE(oracle.ok());
  const std::span<const std::int32_t> ids(oracle->input_ids);
  Reference whole(oracle->config, oracle->weights), parts(oracle->config, oracle->weights);
  const auto expected = whole.forward(ids, 1, nullptr);
  Result<std::vector<float>> got = Status(Code::kInternal, "", "");
  std::size_t at = 0;
  for (std::size_t size = 1; at < ids.size(); at += size, size = size % 37 + 3) {
    size = std::min(size, ids.size() - at);
    got = parts.forward(ids.subspan(at, size), 1, nullptr);
    ASSERT_TRUE(got.ok());
  }
  EXPECT_EQ(*got, *expected);
}

TEST(Reference, RefusesWhatItCannotRun) {
  auto oracle = OracleCase::load("tiny");
  ASSERT_TRUE(oracle.ok());
  Reference reference(oracle->config, oracle->weights);
  EXPECT_EQ(reference.forward({}, 0, nullptr).status().code(), Code::kInvalidArgument);
  const std::vector<std::int32_t> outside = {1, 256};
  const Status status = reference.forward(outside, 1, nullptr).status();
  EXPECT_NE(status.to_string().find("256"), std::string::npos);
  EXPECT_EQ(reference.position(), 0);
}

// Values of the activation worked out apart from this code.
TEST(Reference, ClampedSwigluValues) {
  ModelConfig config;
  config.swiglu_alpha = 1.702F;
  config.swiglu_limit = 7.0F;
  config.swiglu_beta = 1.0F;
  const double cases[][3] = {{1, 0, 0.845796},     {1, 1, 1.691592},    {-1, 1, -0.308408},
                             {8, 9, 55.999625},    {2, -9, -11.613952}, {7, -1, 0},
                             {0.5, 0.25, 0.437986}};
  for (const auto& [gate, up, value] : cases) {
    EXPECT_NEAR(clamped_swiglu(config, static_cast<float>(gate), static_cast<float>(up)), value,
                1e-6 * std::max(1.0, std::fabs(value)));
  }
  EXPECT_NEAR(clamped_swiglu(config, -20, 3) / -1.3e-13, 1.0, 0.05);
}

TEST(Reference, RoutingBiasChoosesButNeverWeighs) {
  ModelConfig config;
  config.experts_per_token = 2;
  config.routed_scale = 2.0F;
  const std::vector<float> logits = {1.0F, 0.5F, -2.0F, 0.5F};
  const auto plain = route(config, logits, {});
  ASSERT_EQ(plain.size(), 2U);
  EXPECT_EQ(plain[0].id, 0);
  EXPECT_EQ(plain[1].id, 1);  // ties with expert 3: the lower id wins
  EXPECT_NEAR(plain[0].weight + plain[1].weight, 2.0F, 1e-6);
  const auto same = route(config, logits, std::vector<float>{0.1F, 0.1F, 0.0F, 0.0F});
  EXPECT_EQ(same[0].weight, plain[0].weight);
  const auto moved = route(config, logits, std::vector<float>{0.0F, 0.0F, 5.0F, 0.0F});
  EXPECT_EQ(moved[0].id, 0);
  EXPECT_EQ(moved[1].id, 2);
}

// With the index heads exchanged the selections go to the wrong KV heads: that must show.
TEST(Reference, IndexHeadsAreNotInterchangeable) {
  auto oracle = OracleCase::load("m3shape");
  ASSERT_TRUE(oracle.ok());
  ModelWeights swapped = oracle->weights;
  std::vector<std::vector<std::uint16_t>> storage;
  for (LayerWeights& layer : swapped.layers) {
    if (layer.index_q.empty()) continue;
    const auto half = static_cast<std::ptrdiff_t>(layer.index_q.weight.bytes / 4);
    const auto* values = layer.index_q.weight.as<std::uint16_t>();
    auto& copy = storage.emplace_back(values + half, values + 2 * half);
    copy.insert(copy.end(), values, values + half);
    layer.index_q.weight.data = reinterpret_cast<const std::byte*>(copy.data());
  }
  Reference right(oracle->config, oracle->weights), wrong(oracle->config, swapped);
  // Beyond topk x block = 512 tokens, where selections differ.
  const auto ids = std::span<const std::int32_t>(oracle->input_ids).first(700);
  const auto a = right.forward(ids, 1, nullptr);
  const auto b = wrong.forward(ids, 1, nullptr);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_GT(relative_l2(*b, *a), 1e-3);
}

}  // namespace
}  // namespace monolayer::m3

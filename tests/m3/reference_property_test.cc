// What must hold of the reference whatever the weights: chunking, selection per row and head, the
// sparse path equal to the full one while every block fits, and nothing left behind by a refusal.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include <gtest/gtest.h>

#include "m3/reference.h"
#include "m3/reference_math.h"
#include "oracle_case.h"

namespace monolayer::m3 {
namespace {

using Tokens = std::span<const std::int32_t>;

struct Seen : TraceSink {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> hiddens;  // layer, row
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>,
           std::pair<std::vector<std::int32_t>, std::vector<float>>>
      selections;  // layer, row, head

  void hidden(std::int64_t layer, std::int64_t row, std::span<const float> values) override {
    EXPECT_TRUE(
        std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }));
    EXPECT_TRUE(
        hiddens.emplace(std::pair(layer, row), std::vector(values.begin(), values.end())).second)
        << "shown twice";
  }
  void blocks(std::int64_t layer, std::int64_t row, std::int64_t head,
              std::span<const std::int32_t> ids, std::span<const float> scores) override {
    selections[{layer, row, head}] = {{ids.begin(), ids.end()}, {scores.begin(), scores.end()}};
  }
};

Seen run(const OracleCase& oracle, Tokens ids, const std::vector<std::size_t>& chunks) {
  Reference reference(oracle.config, oracle.weights);
  Seen seen;
  std::size_t at = 0;
  for (std::size_t i = 0; at < ids.size(); ++i) {
    const std::size_t n = std::min(chunks[i % chunks.size()], ids.size() - at);
    EXPECT_TRUE(reference.forward(ids.subspan(at, n), 0, &seen).ok());
    at += n;
  }
  return seen;
}

// Every hidden state, score and selection, bit for bit.
TEST(ReferenceProperty, AnyChunkingGivesTheSameEverywhere) {
  auto oracle = OracleCase::load("tiny");
  ASSERT_TRUE(oracle.ok()) << oracle.status().to_string();
  const Seen whole = run(*oracle, oracle->input_ids, {512});
  for (const auto& chunks : std::vector<std::vector<std::size_t>>{{1}, {16}, {7, 1, 64, 2, 31}}) {
    const Seen parts = run(*oracle, oracle->input_ids, chunks);
    EXPECT_TRUE(parts.hiddens == whole.hiddens);
    EXPECT_TRUE(parts.selections == whole.selections);
  }
}

// Fault 1: steps of as many rows as there are index heads, at contexts beyond topk x block, so that
// no shape can tell rows from heads. Each (row, head) list must be that row's and that head's.
TEST(ReferenceProperty, SelectionsBelongToTheirRowAndHead) {
  auto oracle = OracleCase::load("m3shape");
  ASSERT_TRUE(oracle.ok()) << oracle.status().to_string();
  const ModelConfig& config = oracle->config;
  ASSERT_EQ(config.index_heads, 4);
  const Tokens ids = Tokens(oracle->input_ids).first(700);
  Reference reference(config, oracle->weights);
  ASSERT_TRUE(reference.forward(ids.first(640), 0, nullptr).ok());
  Seen seen;
  for (std::size_t at = 640; at < ids.size(); at += 4) {
    auto logits = reference.forward(ids.subspan(at, 4), 4, &seen);
    ASSERT_TRUE(logits.ok());
    for (const float value : *logits) ASSERT_TRUE(std::isfinite(value));
  }
  std::int64_t heads_differ = 0, compared = 0;
  for (std::int64_t layer = 1; layer < config.num_layers; ++layer) {
    const auto expected = oracle->ints("blocks." + std::to_string(layer));
    for (std::int64_t row = 640; row < 700; ++row) {
      for (std::int64_t head = 0; head < 4; ++head) {
        const auto* begin = expected.data() + (row * 4 + head) * config.topk_blocks;
        std::vector<std::int32_t> want(begin, begin + config.topk_blocks);
        std::sort(want.begin(), want.end());
        EXPECT_EQ((seen.selections[{layer, row, head}].first), want) << layer << " " << row;
        heads_differ += seen.selections[{layer, row, head}] != seen.selections[{layer, row, 0}];
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 2 * 60 * 4);
  EXPECT_GT(heads_differ, 100) << "heads that always agree could not show a mix-up";
}

// Up to topk x block tokens every block is chosen: the same bits as full causal attention.
TEST(ReferenceProperty, SparseEqualsFullWhileEveryBlockFits) {
  auto oracle = OracleCase::load("tiny");
  ASSERT_TRUE(oracle.ok());
  const std::int64_t fits = oracle->config.topk_blocks * oracle->config.block_size;
  ModelConfig full = oracle->config;
  for (LayerPattern& layer : full.layers) layer.sparse_attention = false;
  Reference sparse(oracle->config, oracle->weights), dense(full, oracle->weights);
  const Tokens ids(oracle->input_ids);
  const auto first = ids.first(static_cast<std::size_t>(fits));
  const auto a = sparse.forward(first, fits, nullptr);
  const auto b = dense.forward(first, fits, nullptr);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(*a, *b);
  // And beyond that they part, or this would show nothing.
  const auto rest = ids.subspan(static_cast<std::size_t>(fits), 100);
  EXPECT_NE(*sparse.forward(rest, 1, nullptr), *dense.forward(rest, 1, nullptr));
}

// At the first position of block `topk` exactly one earlier block is left out.
TEST(ReferenceProperty, FirstSparseRowOmitsOneBlock) {
  auto oracle = OracleCase::load("tiny");
  ASSERT_TRUE(oracle.ok());
  const std::int64_t k = oracle->config.topk_blocks, row = k * oracle->config.block_size;
  const Seen seen =
      run(*oracle, Tokens(oracle->input_ids).first(static_cast<std::size_t>(row + 1)), {512});
  for (std::int64_t head = 0; head < oracle->config.index_heads; ++head) {
    const auto& [ids, scores] = seen.selections.at({1, row, head});
    ASSERT_EQ(scores.size(), static_cast<std::size_t>(k + 1));
    ASSERT_EQ(ids.size(), static_cast<std::size_t>(k));
    EXPECT_EQ(ids.back(), k) << "the row's own block";
    const auto worst = std::min_element(scores.begin(), scores.end() - 1) - scores.begin();
    EXPECT_EQ(std::count(ids.begin(), ids.end(), worst), 0);
  }
}

TEST(ReferenceProperty, InitialBlocksAreForced) {
  auto oracle = OracleCase::load("tiny");
  ASSERT_TRUE(oracle.ok());
  oracle->config.init_blocks = 1;
  const Seen seen = run(*oracle, oracle->input_ids, {512});
  bool would_differ = false;
  for (const auto& [key, selection] : seen.selections) {
    const auto& [ids, scores] = selection;
    EXPECT_EQ(ids.front(), 0);
    EXPECT_EQ(ids.back(), static_cast<std::int32_t>(scores.size()) - 1);
    if (scores.size() < 3) continue;  // nothing between the first and the last
    const auto better = std::count_if(scores.begin() + 1, scores.end() - 1,
                                      [first = scores[0]](float s) { return s > first; });
    would_differ = would_differ || better >= oracle->config.topk_blocks - 1;
  }
  EXPECT_TRUE(would_differ) << "block 0 was always good enough anyway";
}

TEST(ReferenceProperty, RefusalsLeaveTheSequenceAsItWas) {
  auto oracle = OracleCase::load("tiny");
  ASSERT_TRUE(oracle.ok());
  ModelConfig config = oracle->config;
  config.max_positions = 40;
  const Tokens ids(oracle->input_ids);
  Reference disturbed(config, oracle->weights), calm(config, oracle->weights);
  ASSERT_TRUE(disturbed.forward(ids.first(30), 0, nullptr).ok());
  ASSERT_TRUE(calm.forward(ids.first(30), 0, nullptr).ok());
  const std::vector<std::int32_t> bad = {1, 2, -1};
  EXPECT_EQ(disturbed.forward(bad, 1, nullptr).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(disturbed.forward(ids.first(5), 6, nullptr).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(disturbed.forward(ids.first(5), -1, nullptr).status().code(), Code::kInvalidArgument);
  const Status beyond = disturbed.forward(ids.first(11), 1, nullptr).status();
  EXPECT_EQ(beyond.code(), Code::kInvalidArgument);
  EXPECT_NE(beyond.to_string().find("39"), std::string::npos) << beyond.to_string();
  EXPECT_EQ(disturbed.position(), 30);
  const auto a = disturbed.forward(ids.subspan(30, 10), 10, nullptr);
  const auto b = calm.forward(ids.subspan(30, 10), 10, nullptr);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(*a, *b);
  disturbed.reset();
  EXPECT_EQ(disturbed.position(), 0);
}

// Fault 2: the clamp and alpha reach the activation; far from the clamps a plain SiLU would pass.
TEST(ReferenceProperty, ActivationOverTheClamps) {
  ModelConfig config;
  config.swiglu_alpha = 1.702F;
  config.swiglu_limit = 7.0F;
  config.swiglu_beta = 1.0F;
  for (const double gate : {-30.0, -8.0, 0.0, 7.5, 30.0}) {
    for (const double up : {-9.0, 0.0, 9.0}) {
      const double g = std::min(gate, 7.0);
      const double u = std::max(-7.0, std::min(7.0, up));
      const double value = g / (1.0 + std::exp(-static_cast<double>(1.702F) * g)) * (u + 1.0);
      const float got = clamped_swiglu(config, static_cast<float>(gate), static_cast<float>(up));
      EXPECT_NEAR(got, value, 1e-5 * std::fabs(value)) << gate << " " << up;
    }
  }
}

}  // namespace
}  // namespace monolayer::m3

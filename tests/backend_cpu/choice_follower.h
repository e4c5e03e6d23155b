// Lets the native chain take the reference's choices, so that only rounding is left to compare.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "backend_cpu/choice_tally.h"
#include "backend_cpu/native_harness.h"

namespace monolayer::test {

// Puts the reference's choice in place of the chain's where the two differ by a near tie. A choice
// that is no near tie stays, and fails the test through the largest gap.
class Follower : public m3::ChoiceSource {
 public:
  Follower(const m3::ModelConfig& config, const m3::ModelWeights& weights, const Recorder& expected,
           double gap)
      : config_(config), weights_(weights), expected_(expected), gap_(gap) {}

  void blocks(std::int64_t layer, std::int64_t row, std::int64_t head, std::span<const float>,
              std::span<std::int32_t> ids) override {
    const auto key = std::make_tuple(layer, row, head);
    if (static_cast<std::int64_t>(expected_.block_scores.at(key).size()) > config_.topk_blocks) {
      ++with_choice;
    }
    follow(expected_.selections.at(key), expected_.block_scores.at(key),
           deviation(block_deviations_, layer,
                     [&](const m3::LayerWeights& w) { return block_deviation(config_, w); }),
           ids, blocks_tally);
  }
  void experts(std::int64_t layer, std::int64_t row, std::span<const float>,
               std::span<std::int32_t> ids) override {
    follow(expected_.chosen_experts.at({layer, row}), expected_.expert_scores.at({layer, row}),
           deviation(expert_deviations_, layer,
                     [](const m3::LayerWeights& w) { return expert_deviation(w); }),
           ids, experts_tally);
  }

  Tally blocks_tally, experts_tally;
  std::int64_t with_choice = 0;  // (row, head, layer) with more blocks than are chosen

 private:
  using Deviations = std::map<std::int64_t, double>;
  template <typename F>
  double deviation(Deviations& known, std::int64_t layer, F&& compute) {
    const auto found = known.find(layer);
    if (found != known.end()) return found->second;
    return known[layer] = compute(weights_.layers[static_cast<std::size_t>(layer)]);
  }
  void follow(const std::vector<std::int32_t>& want, const std::vector<float>& scores, double unit,
              std::span<std::int32_t> ids, Tally& tally) const {
    ASSERT_EQ(want.size(), ids.size());
    Tally own;
    own.compare(scores, difference(want, ids), difference(ids, want), unit);
    ++tally.compared;
    tally.differ += own.differ;
    tally.largest_gap = std::max(tally.largest_gap, own.largest_gap);
    if (own.largest_gap <= gap_) std::copy(want.begin(), want.end(), ids.begin());
  }

  const m3::ModelConfig& config_;
  const m3::ModelWeights& weights_;
  const Recorder& expected_;
  const double gap_;
  Deviations block_deviations_, expert_deviations_;
};

}  // namespace monolayer::test

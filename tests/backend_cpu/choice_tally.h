// Choices of blocks and experts compared with the reference's: how many differ, and by how much.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer::test {

// How far a near tie may be decided otherwise. Head norm makes index queries and keys of length
// about sqrt(dim) * w, w = the largest |1 + norm weight|, so unrelated ones have scores of
// deviation sqrt(dim) * wq * wk. A relative error e of a query or key, in a random direction, moves
// a score by e times that, and the difference of two scores by twice that; four standard deviations
// of it cover the many comparisons. The same holds for router logits of deviation |w_e| * w, times
// 1/4, the largest slope of the sigmoid. e = 2^-8 is a BF16 unit in the last place, what the
// roundings behind a query, key or normed row add up to; e = 2^-5 that of an E4M3 key.
struct Bounds {
  double logits;     // relative L2 over rows
  double gap;        // in deviations: 2 * 4 * e
  double different;  // share of (row, head, layer) decided otherwise, after like decisions only
  double followed;   // the same over all of them, with every earlier choice the reference's
  double experts;    // share of (row, layer) whose experts may differ
};
inline constexpr Bounds kBf16Bounds{1.5e-2, 8 * 0x1p-8, 0.01, 0.02, 0.03};
inline constexpr Bounds kFp8Bounds{6e-2, 8 * 0x1p-5, 0.05, 0.06, 0.03};

// Deviations of a sparse layer's block scores and of an MoE layer's expert scores.
double block_deviation(const m3::ModelConfig& config, const m3::LayerWeights& weights);
double expert_deviation(const m3::LayerWeights& weights);

// Those of `a` that are not in `b`; both ascending.
std::vector<std::int32_t> difference(std::span<const std::int32_t> a,
                                     std::span<const std::int32_t> b);

struct Tally {
  std::int64_t compared = 0, differ = 0;
  double largest_gap = 0;  // score lost by a choice, in deviations

  // `lost`: in the reference's choice only, `won`: in the other one only; `scores` the reference's.
  void compare(std::span<const float> scores, std::span<const std::int32_t> lost,
               std::span<const std::int32_t> won, double deviation);
  double share() const;
  std::string text() const;
};

}  // namespace monolayer::test

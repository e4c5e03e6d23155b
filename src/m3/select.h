// Which key blocks a row attends to, from the pooled index scores of one index head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace monolayer::m3 {

// What a NaN score counts as: below every real one.
inline constexpr float kNanScore = -1e30F;

struct SelectionRule {
  std::int64_t topk_blocks = 0;   // at most this many, forced ones included
  std::int64_t init_blocks = 0;   // forced: the first ones
  std::int64_t local_blocks = 0;  // forced: the last ones, the row's own block included
};

// scores[b]: pooled score of block b; the row's own block is the last one. Forced blocks first
// (local before init if they do not all fit), then the best scores; the lower id wins ties and NaN
// counts as kNanScore. Writes the chosen ids ascending to `ids`: min(topk_blocks, scores.size()) of
// them.
void select_blocks(const SelectionRule& rule, std::span<const float> scores,
                   std::vector<std::int32_t>& ids);

}  // namespace monolayer::m3

#include "m3/select.h"

#include <algorithm>
#include <cmath>

namespace monolayer::m3 {

void select_blocks(const SelectionRule& rule, std::span<const float> scores,
                   std::vector<std::int32_t>& ids) {
  const auto blocks = static_cast<std::int64_t>(scores.size());
  const std::int64_t wanted = std::min(rule.topk_blocks, blocks);
  const std::int64_t first_local = blocks - std::min(rule.local_blocks, blocks);

  // Rank of a block: 2 local, 1 init, 0 by score.
  const auto rank = [&](std::int32_t id) {
    if (id >= first_local) return 2;
    return id < rule.init_blocks ? 1 : 0;
  };
  const auto score = [&](std::int32_t id) {
    const float value = scores[static_cast<std::size_t>(id)];
    return std::isnan(value) ? kNanScore : value;
  };
  const auto better = [&](std::int32_t a, std::int32_t b) {
    if (rank(a) != rank(b)) return rank(a) > rank(b);
    // Among local blocks the nearest counts most, should topk be smaller than their number.
    if (rank(a) == 2) return a > b;
    if (rank(a) == 0 && score(a) != score(b)) return score(a) > score(b);
    return a < b;
  };

  ids.resize(scores.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  std::nth_element(ids.begin(), ids.begin() + (wanted < blocks ? wanted : blocks), ids.end(),
                   better);
  ids.resize(static_cast<std::size_t>(wanted));
  std::sort(ids.begin(), ids.end());
}

}  // namespace monolayer::m3

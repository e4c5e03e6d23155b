// Shares of a list of work, equal in cost: the one rule by which every executor cuts work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "mono/plan.h"

namespace monolayer::mono {

// The share of `worker` in [0, total), boundaries on multiples of `align`.
inline Extent equal_share(std::int64_t total, int worker, int workers, std::int64_t align = 1) {
  const std::int64_t groups = (total + align - 1) / align;
  const auto boundary = [&](std::int64_t w) {
    return std::min(total, (groups / workers * w + groups % workers * w / workers) * align);
  };
  return {boundary(worker), boundary(worker + 1)};
}

// The share of `worker` in a list, in units counted through all items: cut where the cost is due,
// rounded up to `align` units inside an item. Shares of all workers cover every unit once.
inline Extent work_share(std::span<const WorkItem> items, int worker, int workers,
                         std::int64_t align) {
  std::int64_t total = 0;
  for (const WorkItem& item : items) total += item.units * std::max<std::int64_t>(item.cost, 1);
  const Extent due = equal_share(total, worker, workers);
  const auto cut = [&](std::int64_t at) {
    std::int64_t before = 0;
    for (const WorkItem& item : items) {
      const std::int64_t cost = std::max<std::int64_t>(item.cost, 1);
      if (at < item.units * cost) {
        const std::int64_t unit = (at + cost - 1) / cost;
        return before + std::min(item.units, (unit + align - 1) / align * align);
      }
      at -= item.units * cost;
      before += item.units;
    }
    return before;
  };
  return {cut(due.begin), cut(due.end)};
}

}  // namespace monolayer::mono

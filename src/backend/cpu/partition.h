// Who does what: contiguous shares of a stage's work, equal in cost rather than in count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace monolayer::cpu {

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
};

// The share of `worker` in [0, total), boundaries on multiples of `align`.
inline Range share(std::int64_t total, int worker, int workers, std::int64_t align = 1) {
  const std::int64_t groups = (total + align - 1) / align;
  const auto boundary = [&](std::int64_t w) {
    return std::min(total, (groups / workers * w + groups % workers * w / workers) * align);
  };
  return {boundary(worker), boundary(worker + 1)};
}

// A list of items, each `units` long at a cost per unit (bytes, mostly). Shares cut items at
// multiples of `align` units; together the shares cover every unit exactly once.
class WorkList {
 public:
  explicit WorkList(std::int64_t align = 1) : align_(align) {}
  void clear() { items_.clear(), total_ = 0; }
  void add(std::int64_t units, std::int64_t cost_per_unit) {
    items_.push_back({units, std::max<std::int64_t>(cost_per_unit, 1), total_});
    total_ += units * items_.back().cost;
  }
  std::int64_t items() const { return static_cast<std::int64_t>(items_.size()); }

  // Calls f(item, begin, end) for the units of `worker`'s share.
  template <typename F>
  void each(int worker, int workers, F&& f) const {
    const Range mine = share(total_, worker, workers);
    if (mine.empty()) return;
    // The first item that ends after the share's begin.
    auto it = std::upper_bound(items_.begin(), items_.end(), mine.begin,
                               [](std::int64_t at, const Item& item) { return at < item.start; });
    if (it != items_.begin()) --it;
    for (; it != items_.end() && it->start < mine.end; ++it) {
      const std::int64_t begin = cut(*it, mine.begin);
      const std::int64_t end = cut(*it, mine.end);
      if (begin < end) f(it - items_.begin(), begin, end);
    }
  }

 private:
  struct Item {
    std::int64_t units, cost, start;
  };
  // The unit at which a share boundary at cost `at` cuts the item.
  std::int64_t cut(const Item& item, std::int64_t at) const {
    if (at <= item.start) return 0;
    const std::int64_t unit = (at - item.start + item.cost - 1) / item.cost;
    return std::min(item.units, (unit + align_ - 1) / align_ * align_);
  }
  std::int64_t align_;
  std::int64_t total_ = 0;
  std::vector<Item> items_;
};

}  // namespace monolayer::cpu

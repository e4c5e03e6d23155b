// Which pages of a cache pool are free.
#pragma once

#include <cstdint>
#include <vector>

namespace monolayer::engine {

class PageList {
 public:
  explicit PageList(std::int64_t pages) {
    free_.reserve(static_cast<std::size_t>(pages));
    for (std::int64_t page = pages; page-- > 0;) free_.push_back(static_cast<std::int32_t>(page));
  }

  std::int64_t available() const { return static_cast<std::int64_t>(free_.size()); }
  // Extends `table` to `pages` entries; false, and unchanged, when there are not that many.
  bool extend(std::vector<std::int32_t>& table, std::int64_t pages) {
    const std::int64_t more = pages - static_cast<std::int64_t>(table.size());
    if (more > available()) return false;
    for (std::int64_t i = 0; i < more; ++i) {
      table.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }
  // Gives all pages of `table` back, last first, so that the next sequence gets the same ones.
  void release(std::vector<std::int32_t>& table) {
    while (!table.empty()) {
      free_.push_back(table.back());
      table.pop_back();
    }
  }

 private:
  std::vector<std::int32_t> free_;  // the next one is at the end
};

}  // namespace monolayer::engine

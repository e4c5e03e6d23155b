// Text of bounded length in memory that ranks share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

namespace monolayer::tp {

// Copies what fits of `from` and ends it with a zero.
template <std::size_t n>
void copy_text(const std::string& from, char (&to)[n]) {
  const std::size_t length = std::min(from.size(), n - 1);
  std::memcpy(to, from.data(), length);
  to[length] = 0;
}

}  // namespace monolayer::tp

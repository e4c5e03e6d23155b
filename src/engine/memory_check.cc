#include "engine/memory_check.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace monolayer::engine {

Status check_memory(const MemoryNeed& need, const MemoryAvailable& available,
                    const std::string& subject) {
  const std::int64_t pages = (need.context_tokens + need.page_tokens - 1) / need.page_tokens;
  const std::int64_t fixed = need.weight_bytes + need.constant_bytes;
  const std::int64_t room = available.bytes - fixed;
  const std::int64_t fit = need.page_bytes > 0 ? std::max<std::int64_t>(0, room) / need.page_bytes
                                               : std::numeric_limits<std::int64_t>::max();
  if (room >= 0 && pages <= fit) return ok_status();
  std::string message = "needs " + format_bytes(need.weight_bytes) + " of weights and " +
                        format_bytes(need.constant_bytes) + " beside them";
  // Saturates instead of overflowing: the request is refused either way.
  if (need.page_bytes > 0 && pages <= std::numeric_limits<std::int64_t>::max() / need.page_bytes) {
    message += ", and a context of " + std::to_string(need.context_tokens) + " tokens " +
               format_bytes(pages * need.page_bytes) + " of caches";
  }
  message += "; " + format_bytes(available.bytes) + " are available (" + available.source + ")";
  if (room < 0 || fit == 0) {
    message += "; no context fits";
  } else {
    message +=
        "; the longest context that fits is " + std::to_string(fit * need.page_tokens) + " tokens";
  }
  return {Code::kResourceExhausted, subject, message};
}

std::string format_bytes(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  char text[32];
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f %s", digits, value, kUnits[unit]);
  return text;
}

}  // namespace monolayer::engine

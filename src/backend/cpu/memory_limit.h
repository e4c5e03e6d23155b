// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace monolayer::cpu {

// Bytes: the smaller of the machine's MemAvailable and what every cgroup above this process (v2 or
// v1) leaves, page cache that can be dropped counted as free. `root` is prefixed to /proc and /sys
// paths, for tests. INT64_MAX where nothing says a limit.
std::int64_t available_memory(const std::string& root = "");

}  // namespace monolayer::cpu

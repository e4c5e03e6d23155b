// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"

namespace monolayer {

struct MemoryAvailable {
  std::int64_t bytes = 0;
  std::string source;  // "MemAvailable" or the cgroup file that limits it
};

// The smaller of the machine's MemAvailable and what every memory cgroup above the process (v2 or
// v1) leaves; page cache that can be dropped counts as available. `root` is prepended to /proc and
// /sys paths (tests). kIoError where the machine does not state MemAvailable.
Result<MemoryAvailable> available_memory(const std::string& root = "");

}  // namespace monolayer

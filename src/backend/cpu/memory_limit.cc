#include "backend/cpu/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

namespace monolayer::cpu {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// The number after `key` at the start of a line ("" : the file's first number).
std::optional<std::int64_t> read_number(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const std::size_t digit = line.find_first_of("0123456789", key.size());
    if (digit == std::string::npos) return std::nullopt;  // "max"
    std::int64_t value = 0;
    const auto parsed = std::from_chars(line.data() + digit, line.data() + line.size(), value);
    if (parsed.ec != std::errc()) return std::nullopt;  // v1 writes a huge number for "no limit"
    return value;
  }
  return std::nullopt;
}

struct CgroupFiles {
  const char *limit, *used;
};

// What one group leaves, if it has a limit.
std::int64_t left_in_group(const std::string& folder, const CgroupFiles& files) {
  const auto limit = read_number(folder + "/" + files.limit, "");
  const auto used = read_number(folder + "/" + files.used, "");
  if (!limit || !used) return kUnlimited;
  const std::string stat = folder + "/memory.stat";
  const std::int64_t cache = read_number(stat, "inactive_file ").value_or(0) +
                             read_number(stat, "active_file ").value_or(0);
  return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *used - cache));
}

// The group itself and every parent up to the mount point.
std::int64_t left_in_hierarchy(const std::string& mount, std::string group,
                               const CgroupFiles& files) {
  std::int64_t left = left_in_group(mount, files);
  while (!group.empty() && group != "/") {
    left = std::min(left, left_in_group(mount + group, files));
    const std::size_t slash = group.find_last_of('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
  return left;
}

}  // namespace

std::int64_t available_memory(const std::string& root) {
  std::int64_t left = kUnlimited;
  if (const auto kib = read_number(root + "/proc/meminfo", "MemAvailable:")) {
    left = *kib > kUnlimited / 1024 ? kUnlimited : *kib * 1024;
  }
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;  // "0::/path" in v2, "9:memory:/path" in v1
  while (std::getline(groups, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers(line.data() + first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      left = std::min(left, left_in_hierarchy(root + "/sys/fs/cgroup", group,
                                              {"memory.max", "memory.current"}));
    } else if (controllers == "memory") {
      left = std::min(left, left_in_hierarchy(root + "/sys/fs/cgroup/memory", group,
                                              {"memory.limit_in_bytes", "memory.usage_in_bytes"}));
    }
  }
  return left;
}

}  // namespace monolayer::cpu

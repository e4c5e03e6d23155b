#include "core/memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace monolayer {
namespace {

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::optional<std::int64_t> parse_int(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// The number after `key` at the start of a line ("MemAvailable:  123 kB", "inactive_file 5").
std::optional<std::int64_t> field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.compare(0, key.size(), key) == 0) return parse_int(line.substr(key.size()));
  return std::nullopt;
}

// Memory left in one cgroup folder, or nothing if it sets no limit.
std::optional<std::int64_t> cgroup_left(const std::string& folder, const char* limit_file,
                                        const char* usage_file, const std::string& prefix) {
  const auto limit_text = read_text(folder + "/" + limit_file);
  const auto usage_text = read_text(folder + "/" + usage_file);
  if (!limit_text || !usage_text) return std::nullopt;
  const auto limit = parse_int(*limit_text);  // "max" is not a number: no limit
  const auto usage = parse_int(*usage_text);
  if (!limit || !usage || *limit >= std::numeric_limits<std::int64_t>::max() / 2)
    return std::nullopt;
  std::int64_t droppable = 0;  // page cache, mapped weights included
  if (const auto stat = read_text(folder + "/memory.stat")) {
    droppable = field(*stat, prefix + "inactive_file ").value_or(0) +
                field(*stat, prefix + "active_file ").value_or(0);
  }
  return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *usage - droppable));
}

// Applies the limits of `path` and of every parent of it under `mount`.
void apply_cgroup(const std::string& mount, std::string path, bool v2, MemoryAvailable& available) {
  while (true) {
    const std::string folder = mount + (path == "/" ? "" : path);
    const auto left =
        v2 ? cgroup_left(folder, "memory.max", "memory.current", "")
           : cgroup_left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_");
    if (left && *left < available.bytes) {
      available.bytes = *left;
      available.source = "cgroup limit " + folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes");
    }
    const auto slash = path.rfind('/');
    if (path.size() <= 1 || slash == std::string::npos) return;
    path = slash == 0 ? "/" : path.substr(0, slash);
  }
}

}  // namespace

Result<MemoryAvailable> available_memory(const std::string& root) {
  MemoryAvailable available;
  const std::string meminfo_path = root + "/proc/meminfo";
  const auto meminfo = read_text(meminfo_path);
  const auto kib = meminfo ? field(*meminfo, "MemAvailable:") : std::nullopt;
  if (!kib) return Status(Code::kIoError, meminfo_path, "does not state MemAvailable");
  available.bytes = *kib * 1024;
  available.source = "MemAvailable";

  const auto cgroup = read_text(root + "/proc/self/cgroup");
  std::istringstream lines(cgroup.value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      apply_cgroup(root + "/sys/fs/cgroup", path, true, available);
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      apply_cgroup(root + "/sys/fs/cgroup/memory", path, false, available);
    }
  }
  return available;
}

}  // namespace monolayer

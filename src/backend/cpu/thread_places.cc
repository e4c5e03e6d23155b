#include "backend/cpu/thread_places.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace monolayer::cpu {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  return text.str();
}

void tighten(double& limit, double quota, double period) {
  if (quota <= 0 || period <= 0) return;
  limit = limit == 0 ? quota / period : std::min(limit, quota / period);
}

// Both versions limit every level; a namespace may show a path that does not exist under `root`,
// then only the levels that do are read.
double limit_of_levels(const std::string& mount, std::string path) {
  double limit = 0;
  for (;;) {
    const std::string folder = mount + path;
    double quota = 0;
    double period = 0;
    std::istringstream v2(read_file(folder + "/cpu.max"));
    if (v2 >> quota >> period) tighten(limit, quota, period);  // "max 100000" fails to parse
    std::istringstream v1(read_file(folder + "/cpu.cfs_quota_us"));
    std::istringstream v1_period(read_file(folder + "/cpu.cfs_period_us"));
    if (v1 >> quota && v1_period >> period) tighten(limit, quota, period);
    if (path.empty()) return limit;
    path.resize(path.find_last_of('/'));
  }
}

bool lists_controller(const std::string& controllers, const std::string& name) {
  return ("," + controllers + ",").find("," + name + ",") != std::string::npos;
}

std::vector<int> affinity_cpus() {
  std::vector<int> cpus;
  // Large enough for any machine Linux supports; the kernel fills what it has.
  constexpr int kMaxCpus = 8192;
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  if (set == nullptr) return {0};
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(bytes, set);
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
  }
  CPU_FREE(set);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

// The first allowed CPU of each core hwloc knows; empty if it knows none.
std::vector<int> first_cpu_of_cores(const std::vector<int>& allowed) {
  std::vector<int> cores;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return cores;
  if (hwloc_topology_load(topology) == 0) {
    const int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    for (int i = 0; i < count; ++i) {
      const hwloc_obj_t core =
          hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, static_cast<unsigned>(i));
      if (core == nullptr || core->cpuset == nullptr) continue;
      for (const int cpu : allowed) {
        if (hwloc_bitmap_isset(core->cpuset, static_cast<unsigned>(cpu)) != 0) {
          cores.push_back(cpu);
          break;
        }
      }
    }
  }
  hwloc_topology_destroy(topology);
  return cores;
}

}  // namespace

double cgroup_cpu_limit(const std::string& proc_cgroup, const std::string& root) {
  double limit = 0;
  std::istringstream lines(proc_cgroup);
  // hierarchy:controllers:path, with no controllers for version 2.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    if (!path.empty() && path.front() != '/') continue;
    if (!controllers.empty() && !lists_controller(controllers, "cpu")) continue;
    const std::string mount = controllers.empty() ? root : root + "/cpu";
    const double found = limit_of_levels(mount, path);
    if (found > 0) limit = limit == 0 ? found : std::min(limit, found);
  }
  return limit;
}

Places find_places() {
  Places places;
  const std::vector<int> allowed = affinity_cpus();
  places.allowed_cpus = static_cast<int>(allowed.size());
  places.cores = first_cpu_of_cores(allowed);
  if (places.cores.empty()) places.cores = allowed;
  places.cpu_limit = cgroup_cpu_limit(read_file("/proc/self/cgroup"), "/sys/fs/cgroup");
  return places;
}

}  // namespace monolayer::cpu

// Which CPUs a team may use: physical cores within the affinity mask, and the cgroup's CPU quota.
#pragma once

#include <string>
#include <vector>

namespace monolayer::cpu {

struct Places {
  // One logical CPU (OS index) per allowed physical core, SMT siblings left out.
  std::vector<int> cores;
  int allowed_cpus = 0;  // logical CPUs in the affinity mask
  double cpu_limit = 0;  // CPUs' worth of cgroup quota, the tightest of all levels; 0: none
};

// Never fails: without topology every allowed CPU counts as a core, without a mask there is one.
Places find_places();

// The tightest quota in CPUs from the cgroup (v1 or v2) named by `proc_cgroup` (the text of
// /proc/self/cgroup) up to the root of the hierarchy mounted at `root`; 0 if there is none.
double cgroup_cpu_limit(const std::string& proc_cgroup, const std::string& root);

}  // namespace monolayer::cpu

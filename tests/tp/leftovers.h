// What a test of processes may leave behind: nothing.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace monolayer::tp {

inline std::set<std::string> names_in(const char* folder) {
  std::set<std::string> names;
  DIR* handle = opendir(folder);
  if (handle == nullptr) return names;
  while (const dirent* entry = readdir(handle)) names.insert(entry->d_name);
  closedir(handle);
  return names;
}

// Processes that still map memory of a group made by process `creator`.
inline std::vector<std::string> processes_mapping_memory_of(pid_t creator) {
  const std::string name = "/memfd:monolayer-tp-" + std::to_string(creator) + " ";
  std::vector<std::string> found;
  for (const std::string& pid : names_in("/proc")) {
    if (!std::all_of(pid.begin(), pid.end(), [](unsigned char c) { return std::isdigit(c); })) {
      continue;
    }
    std::ifstream maps("/proc/" + pid + "/maps");
    std::string line;
    while (std::getline(maps, line)) {
      if ((line + " ").find(name) == std::string::npos) continue;
      found.push_back(pid);
      break;
    }
  }
  return found;
}

// True for a process that runs or sleeps; false for none and for one that only waits to be reaped.
inline bool alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return false;
  const std::size_t after_name = text.rfind(')');
  return after_name != std::string::npos && text[after_name + 2] != 'Z' &&
         text[after_name + 2] != 'X';
}

}  // namespace monolayer::tp

// What the CPU benches share: command line, medians, one line of output a result.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace monolayer::bench {

// --name value, or --name=value; the last one counts.
inline std::string option(int argc, char** argv, std::string_view name, std::string fallback) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (argument == name && i + 1 < argc) fallback = argv[i + 1];
    if (argument.starts_with(name) && argument.substr(name.size()).starts_with("=")) {
      fallback = argument.substr(name.size() + 1);
    }
  }
  return fallback;
}

inline bool flag(int argc, char** argv, std::string_view name) {
  return std::any_of(argv + 1, argv + argc, [&](const char* a) { return name == a; });
}

inline std::vector<int> integers(const std::string& list) {
  std::vector<int> values;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    values.push_back(std::atoi(list.substr(at, comma - at).c_str()));
    at = comma + 1;
  }
  return values;
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

template <typename F>
double seconds_of(F&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace monolayer::bench

// One line of progress on stderr: bytes and rate.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace monolayer::cli {

// Shown on a terminal as it goes, elsewhere once at the end; in both cases only for work that takes
// more than half a second, and never when quiet.
class Progress {
 public:
  Progress(std::string what, bool quiet);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::uint64_t done, std::uint64_t total);
  void finish();

 private:
  void print(double seconds) const;

  std::string what_;
  bool quiet_, terminal_, shown_ = false;
  std::uint64_t done_ = 0, total_ = 0;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace monolayer::cli

#include "cli/progress.h"

#include <cstdio>
#include <utility>

#include <unistd.h>

#include "engine/memory_check.h"

namespace monolayer::cli {

using Clock = std::chrono::steady_clock;

Progress::Progress(std::string what, bool quiet)
    : what_(std::move(what)),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

void Progress::print(double seconds) const {
  const auto bytes = static_cast<std::int64_t>(done_);
  const double rate = static_cast<double>(done_) / (seconds > 0 ? seconds : 1);
  std::string text = what_ + ": " + engine::format_bytes(bytes);
  if (total_ > done_) text += " of " + engine::format_bytes(static_cast<std::int64_t>(total_));
  text += ", " + engine::format_bytes(static_cast<std::int64_t>(rate)) + "/s";
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s", text.c_str());
}

void Progress::update(std::uint64_t done, std::uint64_t total) {
  done_ = done;
  total_ = total;
  if (quiet_ || !terminal_) return;
  const auto now = Clock::now();
  if (now - start_ < std::chrono::milliseconds(500)) return;
  if (now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  shown_ = true;
  print(std::chrono::duration<double>(now - start_).count());
}

void Progress::finish() {
  if (quiet_ || total_ == 0) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  if (shown_ || seconds > 0.5) {
    print(seconds);
    std::fputc('\n', stderr);
  }
  total_ = 0;
}

}  // namespace monolayer::cli

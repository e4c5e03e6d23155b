// One JSON line per answered request, written by a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/status.h"
#include "server/http.h"

namespace monolayer::server {

class AccessLog {
 public:
  // Appends to `path`; "-": standard error. kIoError naming the file.
  static Result<std::unique_ptr<AccessLog>> open(const std::string& path);
  // Writes what is left.
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  // Any thread; never waits for the file. Lines that find a full queue are counted and dropped, and
  // the next line says how many.
  void add(Access access);

 private:
  explicit AccessLog(std::FILE* file);
  void loop();

  struct Line {
    Access access;
    double time = 0;
  };
  std::FILE* file_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Line> queue_;
  std::int64_t dropped_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

// The line of one request, without its end; `time` in seconds since 1970.
std::string access_line(const Access& access, double time);

}  // namespace monolayer::server

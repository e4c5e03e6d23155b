// One JSON line per answered request, written by a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/status.h"
#include "server/http.h"

namespace monolayer::server {

class AccessLog {
 public:
  // Appends to `path`; "-": standard error. kIoError naming the file.
  static Result<std::unique_ptr<AccessLog>> open(const std::string& path);
  // Writes what is left, as far as the file takes it within 2 seconds.
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  // Any thread; never waits for the file. Lines that find a full queue or cannot be written are
  // counted and dropped, and the next line says how many. The first that cannot be written is
  // reported on standard error.
  void add(Access access);

 private:
  AccessLog(int fd, std::string path);

  struct Line {
    Access access;
    double time = 0;
  };
  struct State {
    State(int file, std::string name) : fd(file), path(std::move(name)) {}
    ~State();
    void loop();
    bool write_line(std::string line);

    int fd;
    std::string path;
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Line> queue;
    std::int64_t dropped = 0;
    bool cut = false;     // the file ends within a line
    bool warned = false;  // that a line could not be written
    bool stop = false, ended = false;
  };
  std::shared_ptr<State> state_;  // also the thread's
  std::thread thread_;
};

// The line of one request, without its end; `time` in seconds since 1970.
std::string access_line(const Access& access, double time);

}  // namespace monolayer::server

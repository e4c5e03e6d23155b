#include "server/access_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "server/fields.h"

namespace monolayer::server {
namespace {

constexpr std::size_t kMostQueued = 65536;

}  // namespace

std::string access_line(const Access& access, double time) {
  Json line = {{"time", time},
               {"method", access.method},
               {"path", access.path},
               {"status", access.status},
               {"seconds", access.seconds},
               {"bytes", access.bytes}};
  const Json note = Json::parse("{" + access.note + "}", nullptr, false);
  if (note.is_object()) line.update(note);
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::unique_ptr<AccessLog>> AccessLog::open(const std::string& path) {
  // Without O_NONBLOCK a named pipe that nobody reads would hold up the start for good.
  const int fd = path == "-" ? STDERR_FILENO
                             : ::open(path.c_str(),
                                      O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0 && errno == ENXIO)
    return Status(Code::kIoError, path, "is a pipe that nobody reads from");
  if (fd < 0)
    return Status(Code::kIoError, path, std::string("not opened: ") + std::strerror(errno));
  if (fd != STDERR_FILENO) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  return std::unique_ptr<AccessLog>(new AccessLog(fd, path));
}

AccessLog::AccessLog(int fd, std::string path)
    : state_(std::make_shared<State>(fd, std::move(path))) {
  thread_ = std::thread([state = state_] { state->loop(); });
}

AccessLog::State::~State() {
  if (fd != STDERR_FILENO) ::close(fd);
}

AccessLog::~AccessLog() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->wake.notify_all();
  const bool ended =
      state_->wake.wait_for(lock, std::chrono::seconds(2), [&] { return state_->ended; });
  lock.unlock();
  // A thread that nobody reads from keeps its state to itself, until the process ends.
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void AccessLog::add(Access access) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->queue.size() >= kMostQueued) {
      ++state_->dropped;
      return;
    }
    state_->queue.push_back({std::move(access), std::chrono::duration<double>(now).count()});
  }
  state_->wake.notify_all();
}

// False: none or only part of it could be written.
bool AccessLog::State::write_line(std::string line) {
  line += '\n';
  if (cut) line.insert(line.begin(), '\n');  // after what is left of a line
  std::size_t at = 0;
  while (at < line.size()) {
    const ssize_t done = ::write(fd, line.data() + at, line.size() - at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      if (!std::exchange(warned, true))
        std::fprintf(stderr, "monolayer: warning: %s: request log not written: %s\n", path.c_str(),
                     std::strerror(errno));
      break;
    }
    at += static_cast<std::size_t>(done);
  }
  if (at > 0) cut = at < line.size();
  return at == line.size();
}

void AccessLog::State::loop() {
  // A reader that went away is a failed write, not the end of the server.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  std::unique_lock lock(mutex);
  while (true) {
    wake.wait(lock, [&] { return stop || !queue.empty(); });
    if (queue.empty()) break;
    const std::deque<Line> lines = std::exchange(queue, {});
    std::int64_t missing = std::exchange(dropped, 0);
    lock.unlock();
    for (const Line& line : lines) {
      if (missing > 0 && write_line("{\"dropped_lines\":" + std::to_string(missing) + "}"))
        missing = 0;
      if (missing > 0 || !write_line(access_line(line.access, line.time))) ++missing;
    }
    lock.lock();
    dropped += missing;
  }
  ended = true;
  wake.notify_all();
}

}  // namespace monolayer::server

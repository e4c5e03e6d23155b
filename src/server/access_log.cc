#include "server/access_log.h"

#include <cerrno>
#include <chrono>
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
  std::FILE* file = path == "-" ? stderr : std::fopen(path.c_str(), "ae");
  if (file == nullptr)
    return Status(Code::kIoError, path, std::string("not opened: ") + std::strerror(errno));
  return std::unique_ptr<AccessLog>(new AccessLog(file));
}

AccessLog::AccessLog(std::FILE* file) : file_(file), thread_([this] { loop(); }) {}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (file_ != stderr) std::fclose(file_);
}

void AccessLog::add(Access access) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMostQueued) {
      ++dropped_;
      return;
    }
    queue_.push_back({std::move(access), std::chrono::duration<double>(now).count()});
  }
  wake_.notify_one();
}

void AccessLog::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::deque<Line> lines = std::exchange(queue_, {});
    const std::int64_t dropped = std::exchange(dropped_, 0);
    lock.unlock();
    std::string text;
    if (dropped > 0) text += "{\"dropped_lines\":" + std::to_string(dropped) + "}\n";
    for (const Line& line : lines) text += access_line(line.access, line.time) + "\n";
    std::fwrite(text.data(), 1, text.size(), file_);
    std::fflush(file_);
    lock.lock();
  }
}

}  // namespace monolayer::server

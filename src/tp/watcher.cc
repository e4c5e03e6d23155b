#include "tp/watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <system_error>

namespace monolayer::tp {

namespace {

int open_pidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

void report_lost(ControlBlock* control, int rank) {
  const Member& member = control->members[rank];
  if (member.left.load(std::memory_order_acquire) != 0) return;
  WaitRecord record;
  record.kind = WaitRecord::Kind::kPeerLost;
  record.rank = rank;
  record.set_detail("process " + std::to_string(member.pid.load(std::memory_order_relaxed)));
  control->poison.raise(record);
}

}  // namespace

Status Watcher::start(ControlBlock* control, int rank, int size) {
  control_ = control;
  size_ = size;
  peers_.fill(-1);
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0) return {Code::kIoError, "eventfd", std::strerror(errno)};
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    const int fd = open_pidfd(control->members[r].pid.load(std::memory_order_acquire));
    if (fd < 0 && errno == ESRCH) {
      report_lost(control, r);
    } else if (fd < 0 && errno != ENOSYS && errno != EPERM) {
      return {Code::kIoError, "pidfd_open of rank " + std::to_string(r), std::strerror(errno)};
    }
    peers_[static_cast<std::size_t>(r)] = fd;
  }
  try {
    thread_ = std::thread([this] {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for the program's own threads
      run();
    });
  } catch (const std::system_error& error) {
    return {Code::kIoError, "watcher thread", error.what()};
  }
  return {};
}

void Watcher::run() {
  std::array<pollfd, kMaxRanks + 1> watched{};
  for (std::size_t r = 0; r < kMaxRanks; ++r) watched[r] = {peers_[r], POLLIN, 0};
  watched[kMaxRanks] = {wake_, POLLIN, 0};
  while (true) {
    if (poll(watched.data(), watched.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (watched[kMaxRanks].revents != 0) return;
    for (std::size_t r = 0; r < kMaxRanks; ++r) {
      if (watched[r].revents == 0) continue;
      report_lost(control_, static_cast<int>(r));
      watched[r].fd = -1;  // poll() skips it from now on
    }
  }
}

void Watcher::stop() {
  if (wake_ < 0) return;
  const std::uint64_t one = 1;
  if (thread_.joinable() && write(wake_, &one, sizeof one) == sizeof one) thread_.join();
  for (int& fd : peers_) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  ::close(wake_);
  wake_ = -1;
}

}  // namespace monolayer::tp

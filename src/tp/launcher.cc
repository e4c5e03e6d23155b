#include "tp/launcher.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include "tp/process_group.h"
#include "tp/text_field.h"

namespace monolayer::tp {

namespace {

Status run_rank(Group& group, const std::function<Status(Group&)>& rank_main) {
  Status status;
  try {
    status = rank_main(group);
  } catch (const std::exception& error) {
    status = Status(Code::kInternal, "rank " + std::to_string(group.rank()), error.what());
  } catch (...) {
    status = Status(Code::kInternal, "rank " + std::to_string(group.rank()), "unknown exception");
  }
  if (!status.ok() && !group.closed()) group.fail(status);
  const Status closed = group.close();
  return status.ok() ? closed : status;
}

Result<std::vector<Status>> run_threads(int ranks, const std::function<Status(Group&)>& rank_main) {
  ML_ASSIGN_OR_RETURN(auto group, make_thread_group(ranks));
  std::vector<Status> results(group.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < group.size(); ++r) {
    threads.emplace_back([&, r] { results[r] = run_rank(*group[r], rank_main); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// What a child leaves in memory shared with its parent.
struct ExitRecord {
  std::uint32_t written;
  std::uint32_t code;
  char subject[160];
  char message[480];
};

class Children {
 public:
  explicit Children(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {
    void* memory =
        mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) records_ = static_cast<ExitRecord*>(memory);
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() {
    kill_all();
    if (records_ != nullptr) munmap(records_, bytes());
  }

  Status start(int memory, const std::function<Status(Group&)>& rank_main) {
    if (records_ == nullptr) return {Code::kResourceExhausted, "exit records", "no memory"};
    std::fflush(nullptr);  // or children would print it again
    const pid_t parent = getpid();
    for (std::size_t r = 0; r < ranks_; ++r) {
      const pid_t pid = fork();
      if (pid < 0) return {Code::kIoError, "fork of rank " + std::to_string(r), strerror(errno)};
      if (pid == 0) child(parent, static_cast<int>(r), memory, rank_main);
      const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
      children_.push_back({pid, fd, r});
    }
    return {};
  }

  std::vector<Status> wait(std::chrono::milliseconds grace) {
    std::vector<Status> results(ranks_);
    using Clock = std::chrono::steady_clock;
    Clock::time_point limit = Clock::time_point::max();
    while (!children_.empty()) {
      sleep_until_one_ends(limit);
      for (std::size_t i = 0; i < children_.size();) {
        int state = 0;
        if (waitpid(children_[i].pid, &state, WNOHANG) != children_[i].pid) {
          ++i;
          continue;
        }
        Status& result = results[children_[i].rank];
        result = outcome(children_[i].rank, state);
        if (!result.ok()) limit = std::min(limit, Clock::now() + grace);
        remove(i);
      }
      if (Clock::now() >= limit) {
        for (const Child& child : children_) kill(child.pid, SIGKILL);
        limit = Clock::time_point::max();
      }
    }
    return results;
  }

 private:
  struct Child {
    pid_t pid;
    int fd;
    std::size_t rank;
  };

  std::size_t bytes() const { return ranks_ * sizeof(ExitRecord); }

  [[noreturn]] void child(pid_t parent, int rank, int memory,
                          const std::function<Status(Group&)>& rank_main) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // it ended before the line above
    Status status;
    auto group = join_process_group(memory, rank, static_cast<int>(ranks_));
    status = group.ok() ? run_rank(**group, rank_main) : group.status();
    ExitRecord& record = records_[rank];
    record.code = static_cast<std::uint32_t>(status.code());
    copy_text(status.subject(), record.subject);
    copy_text(status.message(), record.message);
    record.written = 1;
    std::fflush(nullptr);
    _exit(status.ok() ? 0 : 1);
  }

  Status outcome(std::size_t rank, int state) const {
    const ExitRecord& record = records_[rank];
    if (WIFEXITED(state) && record.written == 1) {
      return {static_cast<Code>(record.code), record.subject, record.message};
    }
    const std::string who = "rank " + std::to_string(rank);
    if (WIFSIGNALED(state)) {
      return {Code::kInternal, who, "ended by signal " + std::to_string(WTERMSIG(state))};
    }
    return {Code::kInternal, who, "exited with code " + std::to_string(WEXITSTATUS(state))};
  }

  void sleep_until_one_ends(std::chrono::steady_clock::time_point limit) const {
    std::vector<pollfd> watched;
    int timeout = -1;
    for (const Child& child : children_) {
      if (child.fd >= 0)
        watched.push_back({child.fd, POLLIN, 0});
      else
        timeout = 10;  // no pidfds here: look again soon
    }
    if (limit != std::chrono::steady_clock::time_point::max()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          limit - std::chrono::steady_clock::now());
      const int until = static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 60'000));
      timeout = timeout < 0 ? until : std::min(timeout, until);
    }
    (void)poll(watched.data(), watched.size(), timeout);
  }

  void remove(std::size_t i) {
    if (children_[i].fd >= 0) ::close(children_[i].fd);
    children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void kill_all() {
    for (const Child& child : children_) kill(child.pid, SIGKILL);
    while (!children_.empty()) {
      while (waitpid(children_.back().pid, nullptr, 0) < 0 && errno == EINTR) {
      }
      remove(children_.size() - 1);
    }
  }

  std::size_t ranks_;
  ExitRecord* records_ = nullptr;
  std::vector<Child> children_;
};

Result<std::vector<Status>> run_processes(const LaunchOptions& options,
                                          const std::function<Status(Group&)>& rank_main) {
  ML_ASSIGN_OR_RETURN(int memory, create_group_memory());
  Children children(options.ranks);
  const Status started = children.start(memory, rank_main);
  ::close(memory);
  ML_RETURN_IF_ERROR(started);
  return children.wait(options.grace);
}

}  // namespace

Result<std::vector<Status>> run_ranks(const LaunchOptions& options,
                                      const std::function<Status(Group&)>& rank_main) {
  const int ranks = options.ranks;
  if (ranks != 1 && ranks != 2 && ranks != 4 && ranks != 8) {
    return Status{Code::kInvalidArgument, "tensor-parallel size",
                  std::to_string(ranks) + " is not 1, 2, 4 or 8"};
  }
  return options.kind == RankKind::kThreads ? run_threads(ranks, rank_main)
                                            : run_processes(options, rank_main);
}

}  // namespace monolayer::tp

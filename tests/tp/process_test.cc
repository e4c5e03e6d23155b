// Groups of processes: the same results as threads, and how they end when a process is killed,
// stopped or left alone. T-L7, T-L13 (group part), T-P7 (group part).
#include "tp/process_group.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "tp/launcher.h"
#include "tp/leftovers.h"
#include "tp/thread_ranks.h"

namespace monolayer::tp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class Processes : public ::testing::Test {
 protected:
  void SetUp() override { shm_ = names_in("/dev/shm"); }
  void TearDown() override {
    EXPECT_EQ(names_in("/dev/shm"), shm_);
    EXPECT_TRUE(processes_mapping_memory_of(getpid()).empty());
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
  }

  static std::vector<Status> run(int ranks, const std::function<Status(Group&)>& rank_main,
                                 milliseconds grace = milliseconds(3000)) {
    auto results = run_ranks({RankKind::kProcesses, ranks, grace}, rank_main);
    EXPECT_TRUE(results.ok()) << results.status().to_string();
    return results.ok() ? *results : std::vector<Status>{};
  }

 private:
  std::set<std::string> shm_;
};

Status exercise(Group& group) {
  const auto me = static_cast<std::size_t>(group.rank());
  for (int round = 0; round < 20; ++round) {
    std::vector<float> values(20000);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = std::ldexp(static_cast<float>(i % 31) + 1, static_cast<int>(me) * 5 - 10);
    }
    ML_RETURN_IF_ERROR(group.all_reduce(values));
    for (std::size_t i = 0; i < values.size(); ++i) {
      float roots[kMaxRanks] = {};
      for (int r = 0; r < group.size(); ++r) {
        roots[r] = std::ldexp(static_cast<float>(i % 31) + 1, r * 5 - 10);
      }
      if (values[i] != add_roots(roots, group.size())) return {Code::kInternal, "sum", "wrong"};
    }
  }
  for (int round = 0; round < 3; ++round) {
    ML_ASSIGN_OR_RETURN(SymmetricRegion region, group.allocate(100000));
    for (std::size_t i = 0; i < region.bytes; ++i) {
      if (region.base[me][i] != std::byte{0}) return {Code::kInternal, "region", "not zero"};
    }
    ML_RETURN_IF_ERROR(group.barrier());
    for (int r = 0; r < group.size(); ++r) {
      region.base[static_cast<std::size_t>(r)][99000 + me] = static_cast<std::byte>(me + 1);
    }
    ML_RETURN_IF_ERROR(group.barrier());
    for (std::size_t r = 0; r < static_cast<std::size_t>(group.size()); ++r) {
      if (region.base[me][99000 + r] != static_cast<std::byte>(r + 1)) {
        return {Code::kInternal, "region", "peer's byte is missing"};
      }
    }
    if (round != 2) ML_RETURN_IF_ERROR(group.release(region));
  }
  return {};
}

TEST_F(Processes, SameCallsAsThreads) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
      const auto results = run_ranks({kind, ranks}, exercise);
      ASSERT_TRUE(results.ok()) << results.status().to_string();
      expect_ok(*results);
    }
  }
}

TEST_F(Processes, BadSizesAreRefused) {
  for (const int ranks : {0, 3, 16, -2}) {
    for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
      EXPECT_EQ(run_ranks({kind, ranks}, exercise).status().code(), Code::kInvalidArgument);
    }
  }
  EXPECT_EQ(join_process_group(0, 0, 3).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(join_process_group(0, 2, 2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(join_process_group(-1, 0, 2).status().code(), Code::kInvalidArgument);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(join_process_group(null, 0, 2).status().code(), Code::kInvalidArgument);
  close(null);
}

// T-L13, group part: memory that cannot be had is refused on all ranks, before and after others
// were had, and the group goes on.
TEST_F(Processes, T_L13_TooLargeARegionIsRefusedOnAll) {
  for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
    const auto results = run_ranks({kind, 2}, [](Group& group) -> Status {
      ML_ASSIGN_OR_RETURN(SymmetricRegion region, group.allocate(4096));
      if (group.allocate(1ULL << 50).status().code() != Code::kResourceExhausted) {
        return {Code::kInternal, "region", "had 2^50 bytes"};
      }
      if (group.allocate(0).status().code() != Code::kInvalidArgument) {
        return {Code::kInternal, "region", "had 0 bytes"};
      }
      const std::size_t bytes = group.rank() == 0 ? 4096 : 8192;
      if (group.allocate(bytes).status().code() != Code::kFailedPrecondition) {
        return {Code::kInternal, "region", "had different sizes"};
      }
      ML_RETURN_IF_ERROR(group.release(region));
      return group.allocate(5000).status();
    });
    ASSERT_TRUE(results.ok());
    expect_ok(*results);
  }
}

TEST_F(Processes, AnErrorOfOneRankIsEverybodysAndExceptionsAreErrors) {
  for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
    const auto results = run_ranks({kind, 4}, [](Group& group) -> Status {
      if (group.rank() == 2) throw std::runtime_error("no luck");
      return group.barrier();
    });
    ASSERT_TRUE(results.ok());
    for (const Status& status : *results) {
      EXPECT_EQ(status.code(), Code::kInternal);
      EXPECT_NE(status.to_string().find("rank 2: no luck"), std::string::npos)
          << status.to_string();
    }
  }
}

// T-P7, group part: a killed rank is noticed at once, long before the deadline of 10 s, also by
// ranks that wait for somebody else.
TEST_F(Processes, T_P7_KilledRankIsNoticedAtOnce) {
  const auto start = Clock::now();
  const auto results = run(4, [](Group& group) -> Status {
    ML_RETURN_IF_ERROR(group.allocate(1 << 20).status());
    if (group.rank() == 2) kill(getpid(), SIGKILL);
    return group.barrier();
  });
  EXPECT_LT(Clock::now() - start, milliseconds(1500));
  ASSERT_EQ(results.size(), 4U);
  EXPECT_EQ(results[2].to_string(), "rank 2: ended by signal 9");
  for (const std::size_t r : {0, 1, 3}) {
    EXPECT_EQ(results[r].code(), Code::kDeadlineExceeded);
    EXPECT_EQ(results[r].to_string(), results[0].to_string());
    EXPECT_NE(results[r].to_string().find("rank 2: ended without leaving the group (process "),
              std::string::npos)
        << results[r].to_string();
  }
}

// T-P7, group part: a stopped rank is noticed when the deadline has passed, and killed by the
// launcher when the grace is over.
TEST_F(Processes, T_P7_StoppedRankIsNoticedByTheDeadline) {
  const auto start = Clock::now();
  const auto results = run(
      4,
      [](Group& group) -> Status {
        if (group.rank() == 1) kill(getpid(), SIGSTOP);
        const auto begin = Clock::now();
        Status status = group.barrier(Deadline(milliseconds(200)));
        const auto took = Clock::now() - begin;
        if (took > milliseconds(1200)) return {Code::kInternal, "report", "too late"};
        return status;
      },
      milliseconds(300));
  EXPECT_LT(Clock::now() - start, milliseconds(2500));
  ASSERT_EQ(results.size(), 4U);
  EXPECT_EQ(results[1].to_string(), "rank 1: ended by signal 9");
  for (const std::size_t r : {0, 2, 3}) {
    EXPECT_EQ(results[r].code(), Code::kDeadlineExceeded);
    EXPECT_EQ(results[r].to_string(), results[0].to_string());
    EXPECT_NE(results[r].message().find("rank 1 has not arrived"), std::string::npos)
        << results[r].to_string();
  }
}

// T-L7, group part: ranks that end without close, in whatever state, hang nobody.
TEST_F(Processes, T_L7_ExitWithoutClose) {
  const auto results = run(2, [](Group& group) -> Status {
    ML_RETURN_IF_ERROR(group.allocate(1 << 20).status());
    ML_RETURN_IF_ERROR(group.barrier());
    _exit(7);
  });
  ASSERT_EQ(results.size(), 2U);
  for (const Status& status : results) {
    EXPECT_NE(status.to_string().find("exited with code 7"), std::string::npos);
  }
}

// The launcher is killed: its ranks, one of them stopped, and their memory go with it.
TEST_F(Processes, RanksEndWithTheirLauncher) {
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    (void)run_ranks({RankKind::kProcesses, 4}, [&](Group& group) -> Status {
      ML_RETURN_IF_ERROR(group.allocate(1 << 20).status());
      const pid_t self = getpid();
      if (write(channel[1], &self, sizeof self) != sizeof self) _exit(3);
      if (group.rank() == 3) kill(self, SIGSTOP);
      return group.barrier(Deadline(std::chrono::seconds(60)));
    });
    _exit(0);
  }
  pid_t ranks[4];
  for (pid_t& pid : ranks) ASSERT_EQ(read(channel[0], &pid, sizeof pid), ssize_t{sizeof pid});
  EXPECT_FALSE(processes_mapping_memory_of(launcher).empty());
  for (const pid_t pid : ranks) EXPECT_TRUE(alive(pid));
  kill(launcher, SIGKILL);
  ASSERT_EQ(waitpid(launcher, nullptr, 0), launcher);
  const Deadline deadline(milliseconds(2000));
  const auto any_alive = [&] {
    for (const pid_t pid : ranks) {
      if (alive(pid)) return true;
    }
    return false;
  };
  while (any_alive() && !deadline.expired()) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_FALSE(any_alive());
  EXPECT_TRUE(processes_mapping_memory_of(launcher).empty());
  close(channel[0]);
  close(channel[1]);
}

// Processes that were not started by one launcher: each forks by itself and knows only the token.
std::vector<int> meet(const std::string& token, const std::vector<std::pair<int, int>>& ranks,
                      milliseconds timeout, const std::function<Status(Group&)>& rank_main) {
  std::vector<pid_t> children;
  for (const auto& [rank, size] : ranks) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto group = meet_process_group(token, rank, size, Deadline(timeout));
      if (!group.ok()) _exit(10 + static_cast<int>(group.status().code()));
      const Status status = rank_main(**group);
      const Status closed = (*group)->close();
      _exit(status.ok() && closed.ok() ? 0 : 1);
    }
    children.push_back(pid);
    std::this_thread::sleep_for(milliseconds(5));
  }
  std::vector<int> codes;
  for (const pid_t pid : children) {
    int state = 0;
    waitpid(pid, &state, 0);
    codes.push_back(WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state));
  }
  return codes;
}

constexpr int failed_with(Code code) { return 10 + static_cast<int>(code); }

TEST_F(Processes, MeetByToken) {
  EXPECT_NE(new_meeting_token(), new_meeting_token());
  EXPECT_EQ(new_meeting_token().size(), 32U);
  const std::vector<std::pair<int, int>> ranks = {{3, 4}, {1, 4}, {0, 4}, {2, 4}};
  EXPECT_EQ(meet(new_meeting_token(), ranks, milliseconds(5000), exercise),
            std::vector<int>({0, 0, 0, 0}));
}

// Connects to the meeting and says `bytes` bytes of nonsense, or nothing.
pid_t intruder(const std::string& token, std::size_t bytes) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = "monolayer-tp-" + token;
  std::memcpy(name.sun_path + 1, text.data(), text.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  while (true) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&name), length) == 0) {
      const std::string nonsense(bytes, 'x');
      if (bytes != 0) (void)!send(fd, nonsense.data(), bytes, MSG_NOSIGNAL);
      pause();
    }
    close(fd);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

TEST_F(Processes, MeetingSurvivesIntruders) {
  const std::string token = new_meeting_token();
  const pid_t intruders[] = {intruder(token, 0), intruder(token, 3), intruder(token, 4000)};
  EXPECT_EQ(meet(token, {{0, 2}, {1, 2}}, milliseconds(8000), exercise), std::vector<int>({0, 0}));
  for (const pid_t pid : intruders) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

TEST_F(Processes, MeetingFailsByNameAndInTime) {
  const auto start = Clock::now();
  const int late = failed_with(Code::kDeadlineExceeded);
  EXPECT_EQ(meet(new_meeting_token(), {{1, 2}}, milliseconds(100), exercise),
            std::vector<int>({late}));
  EXPECT_EQ(meet(new_meeting_token(), {{0, 2}}, milliseconds(100), exercise),
            std::vector<int>({late}));
  EXPECT_EQ(
      meet(new_meeting_token(), {{0, 2}, {1, 4}}, milliseconds(1000), exercise),
      std::vector<int>({failed_with(Code::kInvalidArgument), failed_with(Code::kPeerRefused)}));
  for (const std::string& token : {std::string(), std::string("a/b"), std::string(65, 'x')}) {
    EXPECT_EQ(meet_process_group(token, 0, 2).status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(meet_process_group("a", 8, 9).status().code(), Code::kInvalidArgument);
  EXPECT_LT(Clock::now() - start, milliseconds(3000));
}

// Two groups on one host at once, made both ways, never see each other.
TEST_F(Processes, TwoGroupsAtOnceDoNotCollide) {
  const std::string tokens[] = {new_meeting_token(), new_meeting_token()};
  std::vector<pid_t> servers;
  for (int server = 0; server < 4; ++server) {
    const pid_t pid = fork();
    if (pid == 0) {
      bool good = true;
      if (server < 2) {
        const std::vector<std::pair<int, int>> ranks = {{0, 2}, {1, 2}};
        good =
            meet(tokens[server], ranks, milliseconds(5000), exercise) == std::vector<int>({0, 0});
      } else {
        for (const Status& status : run(2, exercise)) good = good && status.ok();
      }
      _exit(good ? 0 : 1);
    }
    servers.push_back(pid);
  }
  for (const pid_t pid : servers) {
    int state = 0;
    waitpid(pid, &state, 0);
    EXPECT_EQ(state, 0);
  }
}

// What lies where a released region was belongs to somebody else when the group closes.
TEST_F(Processes, CloseLeavesTheAddressesOfReleasedRegionsAlone) {
  const auto memory = create_group_memory();
  ASSERT_TRUE(memory.ok()) << memory.status().to_string();
  auto group = join_process_group(*memory, 0, 1, Deadline());
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  constexpr std::size_t kBytes = 36864;
  auto region = (*group)->allocate(kBytes);
  ASSERT_TRUE(region.ok()) << region.status().to_string();
  std::byte* const at = region->base[0];
  ASSERT_TRUE((*group)->release(*region).ok());
  void* const stranger = mmap(at, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(stranger, at);
  EXPECT_TRUE((*group)->close().ok());
  // ENOMEM: nothing is mapped there any more.
  EXPECT_EQ(msync(stranger, kBytes, MS_ASYNC), 0) << std::strerror(errno);
  munmap(stranger, kBytes);
  ::close(*memory);
}

}  // namespace
}  // namespace monolayer::tp

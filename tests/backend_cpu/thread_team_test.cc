#include "backend/cpu/thread_team.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/thread_places.h"

namespace monolayer::cpu {
namespace {

std::unique_ptr<ThreadTeam> team_of(int threads, bool pin = true) {
  auto team = ThreadTeam::create({.threads = threads, .pin = pin});
  EXPECT_TRUE(team.ok());
  return std::move(team).value();
}

// Every worker runs exactly once a round, and plain writes cross the hand-off both ways: a missing
// release or acquire is a wrong sum here and a report under ThreadSanitizer.
void exercise(ThreadTeam& team, int rounds) {
  const auto size = static_cast<std::size_t>(team.size());
  std::vector<int> calls(size * 16, 0);
  int input = 0;
  for (int round = 1; round <= rounds; ++round) {
    input = round;
    team.each([&](int worker) { calls[static_cast<std::size_t>(worker) * 16] += input; });
    ASSERT_EQ(std::accumulate(calls.begin(), calls.end(), 0L),
              static_cast<long>(size) * round * (round + 1) / 2);
  }
}

TEST(ThreadTeam, RunsEveryWorkerOncePerRound) {
  for (const int threads : {1, 2, 3, 5}) exercise(*team_of(threads), 2000);
}

TEST(ThreadTeam, WorksOversubscribedAndUnpinned) {
  exercise(*team_of(16), 300);
  exercise(*team_of(2, false), 2000);
}

TEST(ThreadTeam, WorkersSleepBetweenRoundsAndComeBack) {
  const auto team = team_of(3);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond the spin time
    exercise(*team, 3);
  }
}

TEST(ThreadTeam, CallerWaitsForASlowWorker) {
  const auto team = team_of(2);
  int done = 0;
  team->each([&](int worker) {
    if (worker == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = 1;
  });
  EXPECT_EQ(done, 1);
}

TEST(ThreadTeam, SeveralTeamsAndCallersFromOtherThreads) {
  const auto one = team_of(2);
  const auto two = team_of(2);
  std::thread other([&] { exercise(*two, 500); });
  exercise(*one, 500);
  other.join();
  exercise(*two, 10);
}

TEST(ThreadTeam, WorkersAreBoundToCoresOfTheirOwnAndTheCallerKeepsItsMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const Places places = find_places();
  const int size = static_cast<int>(std::min<std::size_t>(places.cores.size(), 4));
  const auto team = team_of(size);
  std::vector<int> cpus(static_cast<std::size_t>(size), -1);
  std::vector<int> allowed(cpus);
  team->each([&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    allowed[w] = CPU_COUNT(&set);
    cpus[w] = sched_getcpu();
  });
  for (std::size_t w = 1; w < cpus.size(); ++w) {
    EXPECT_EQ(allowed[w], 1);
    EXPECT_EQ(cpus[w], places.cores[w]);
  }
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ThreadTeam, RespectsTheCallersAffinity) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(find_places().cores.back()), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const auto alone = team_of(0);
  EXPECT_EQ(alone->size(), 1);
  exercise(*team_of(3), 100);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(ThreadTeam, SaysWhatItChose) {
  EXPECT_NE(team_of(0)->describe().find("one per usable physical core"), std::string_view::npos);
  EXPECT_NE(team_of(64)->describe().find("sleep at once"), std::string_view::npos);
  EXPECT_NE(team_of(1)->describe().find("1 thread as asked"), std::string_view::npos);
}

TEST(ThreadTeam, RefusesSizesOutOfRange) {
  for (const int threads : {-1, 1025}) {
    const auto team = ThreadTeam::create({.threads = threads});
    ASSERT_FALSE(team.ok());
    EXPECT_EQ(team.status().code(), Code::kInvalidArgument);
    EXPECT_NE(team.status().to_string().find("1024"), std::string::npos);
  }
}

class CgroupTree : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "cgroup_" + std::to_string(::getpid());
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file(root_ + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root_;
};

TEST_F(CgroupTree, Version2TakesTheTightestLevel) {
  write("/a/cpu.max", "250000 100000\n");
  write("/a/b/cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit("0::/a/b\n", root_), 2.5);
  write("/a/b/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit("0::/a/b\n", root_), 1.5);
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit("0::/\n", root_), 0);
}

TEST_F(CgroupTree, AContainersOwnRootIsRead) {
  write("/cpu.max", "50000 100000");
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit("0::/", root_), 0.5);
  // A path of the host, invisible in the container.
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit("0::/kubepods/pod1", root_), 0.5);
}

TEST_F(CgroupTree, Version1UsesTheCpuHierarchyOnly) {
  write("/cpu/job/cpu.cfs_quota_us", "300000");
  write("/cpu/job/cpu.cfs_period_us", "100000");
  write("/cpu/cpu.cfs_quota_us", "-1");
  write("/cpu/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit("3:cpu,cpuacct:/job\n2:memory:/other\n", root_), 3);
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit("3:cpuset:/job\n", root_), 0);
}

TEST_F(CgroupTree, NonsenseIsNoLimit) {
  write("/cpu.max", "0 0");
  for (const char* text : {"", "x", "0:", "::", "0::relative", "0::////", "\n\n:\n"}) {
    EXPECT_DOUBLE_EQ(cgroup_cpu_limit(text, root_), 0) << text;
  }
}

}  // namespace
}  // namespace monolayer::cpu

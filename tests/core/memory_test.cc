#include "core/memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace monolayer {
namespace {

namespace fs = std::filesystem;

class AvailableMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/monolayer-memory-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
    put("/proc/meminfo", "MemTotal:  8000000 kB\nMemAvailable:    4000000 kB\nSwapFree: 1 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(AvailableMemory, MemAvailableWithoutCgroup) {
  const auto got = available_memory(root_);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->bytes, 4000000LL * 1024);
  EXPECT_EQ(got->source, "MemAvailable");
}

TEST_F(AvailableMemory, CgroupV2LimitOfAParentCounts) {
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  put("/sys/fs/cgroup/a/b/memory.current", "500\n");
  put("/sys/fs/cgroup/a/memory.max", "1000000\n");
  put("/sys/fs/cgroup/a/memory.current", "600000\n");
  put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 150000\nactive_file 50000\nfile 9\n");
  const auto got = available_memory(root_);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->bytes, 1000000 - (600000 - 200000));
  EXPECT_NE(got->source.find("/a/memory.max"), std::string::npos);
}

TEST_F(AvailableMemory, CgroupV1) {
  put("/proc/self/cgroup", "7:cpu,cpuacct:/\n5:memory:/box\n");
  put("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "700000\n");
  put("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "100000\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  const auto got = available_memory(root_);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->bytes, 600000);
  put("/sys/fs/cgroup/memory/box/memory.stat",
      "inactive_file 7\nactive_file 7\ntotal_inactive_file 30000\ntotal_active_file 20000\n");
  EXPECT_EQ(available_memory(root_)->bytes, 650000);
}

TEST_F(AvailableMemory, TheMachineLimitsALooserGroup) {
  put("/proc/self/cgroup", "0::/a\n");
  put("/sys/fs/cgroup/a/memory.max", "900000000000\n");
  put("/sys/fs/cgroup/a/memory.current", "600000\n");
  EXPECT_EQ(available_memory(root_)->bytes, 4000000LL * 1024);
}

// What cannot be parsed is no limit; what is used beyond the limit leaves nothing, never less.
TEST_F(AvailableMemory, NonsenseAndOveruse) {
  put("/proc/self/cgroup", "no colons\n0::/a\n");
  put("/sys/fs/cgroup/a/memory.max", "much\n");
  put("/sys/fs/cgroup/a/memory.current", "1\n");
  EXPECT_EQ(available_memory(root_)->bytes, 4000000LL * 1024);
  put("/sys/fs/cgroup/a/memory.max", "100\n");
  put("/sys/fs/cgroup/a/memory.current", "200\n");
  EXPECT_EQ(available_memory(root_)->bytes, 0);
}

TEST_F(AvailableMemory, NoMeminfoIsAnError) {
  fs::remove(root_ + "/proc/meminfo");
  EXPECT_FALSE(available_memory(root_).ok());
}

}  // namespace
}  // namespace monolayer

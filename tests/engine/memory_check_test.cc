#include "engine/memory_check.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace monolayer::engine {
namespace {

namespace fs = std::filesystem;

class Root : public ::testing::Test {
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

TEST_F(Root, MemAvailableWithoutCgroup) {
  const auto got = available_memory(root_);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->bytes, 4000000LL * 1024);
  EXPECT_EQ(got->source, "MemAvailable");
}

TEST_F(Root, CgroupV2LimitOfAParentCounts) {
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  put("/sys/fs/cgroup/a/b/memory.current", "500\n");
  put("/sys/fs/cgroup/a/memory.max", "1000000\n");
  put("/sys/fs/cgroup/a/memory.current", "600000\n");
  put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 200000\n");
  const auto got = available_memory(root_);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->bytes, 1000000 - (600000 - 200000));
  EXPECT_NE(got->source.find("/a/memory.max"), std::string::npos);
}

TEST_F(Root, CgroupV1) {
  put("/proc/self/cgroup", "7:cpu,cpuacct:/\n5:memory:/box\n");
  put("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "700000\n");
  put("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "100000\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  const auto got = available_memory(root_);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->bytes, 600000);
}

TEST_F(Root, NoMeminfoIsAnError) {
  fs::remove(root_ + "/proc/meminfo");
  EXPECT_FALSE(available_memory(root_).ok());
}

TEST(CheckMemory, FitsExactly) {
  const MemoryNeed need{
      .weight_bytes = 1000, .page_bytes = 10, .context_tokens = 129, .constant_bytes = 100};
  EXPECT_TRUE(check_memory(need, {1120, "x"}, "m").ok());
  const Status status = check_memory(need, {1119, "x"}, "m");
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("longest context that fits is 128 tokens"), std::string::npos)
      << status.message();
}

TEST(CheckMemory, WeightsAloneDoNotFit) {
  const MemoryNeed need{.weight_bytes = 1000, .page_bytes = 10, .context_tokens = 1};
  const Status status = check_memory(need, {900, "x"}, "m");
  EXPECT_NE(status.message().find("no context fits"), std::string::npos) << status.message();
}

TEST(CheckMemory, HugeContextDoesNotOverflow) {
  const MemoryNeed need{.weight_bytes = 1,
                        .page_bytes = std::int64_t{1} << 40,
                        .context_tokens = std::int64_t{1} << 60,
                        .constant_bytes = 1};
  EXPECT_FALSE(check_memory(need, {std::int64_t{1} << 41, "x"}, "m").ok());
}

TEST(FormatBytes, ThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1500), "1.50 kB");
  EXPECT_EQ(format_bytes(23456789), "23.5 MB");
  EXPECT_EQ(format_bytes(242659360768), "243 GB");
}

}  // namespace
}  // namespace monolayer::engine

// The request log against files that take nothing.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "server/access_log.h"

namespace monolayer::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Access access(const std::string& path) {
  Access made;
  made.method = "GET";
  made.path = path;
  made.status = 200;
  return made;
}

std::string name(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

TEST(AccessLog, AReaderThatLeftCostsLinesNotTheProcess) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  {
    auto log = AccessLog::open(name(pipe[1]));
    ASSERT_TRUE(log.ok()) << log.status().to_string();
    ::close(pipe[0]);
    (*log)->add(access("/first"));
    (*log)->add(access("/second"));
    std::this_thread::sleep_for(milliseconds(300));
    pipe[0] = ::open(name(pipe[1]).c_str(), O_RDONLY | O_NONBLOCK);
    ASSERT_GE(pipe[0], 0);
    (*log)->add(access("/third"));
  }
  std::array<char, 4096> got{};
  const ssize_t bytes = ::read(pipe[0], got.data(), got.size());
  ASSERT_GT(bytes, 0);
  const std::string text(got.data(), static_cast<std::size_t>(bytes));
  EXPECT_EQ(text.find("{\"dropped_lines\":2}\n"), 0U) << text;
  EXPECT_NE(text.find("/third"), std::string::npos) << text;
  EXPECT_EQ(text.find("/second"), std::string::npos) << text;
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(AccessLog, APipeWithoutReaderIsRefusedAtOnce) {
  const std::string path = ::testing::TempDir() + "access_log_fifo";
  ::unlink(path.c_str());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto log = AccessLog::open(path);
  ASSERT_FALSE(log.ok());
  EXPECT_EQ(path + ": is a pipe that nobody reads from", log.status().to_string());
  ::unlink(path.c_str());
}

TEST(AccessLog, AFullPipeDoesNotHoldUpTheEnd) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_NONBLOCK), 0);
  const std::array<char, 4096> page{};
  while (::write(pipe[1], page.data(), page.size()) > 0) {
  }
  {
    auto log = AccessLog::open(name(pipe[1]));  // a description of its own: it blocks
    ASSERT_TRUE(log.ok()) << log.status().to_string();
    (*log)->add(access("/stuck"));
    std::this_thread::sleep_for(milliseconds(100));
    const auto begin = std::chrono::steady_clock::now();
    log->reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(5));
  }
  ::close(pipe[0]);  // lets the writer go
  ::close(pipe[1]);
}

TEST(AccessLog, AFullDiskIsNoError) {
  auto log = AccessLog::open("/dev/full");
  ASSERT_TRUE(log.ok()) << log.status().to_string();
  (*log)->add(access("/lost"));
}

}  // namespace
}  // namespace monolayer::server

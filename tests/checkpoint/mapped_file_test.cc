#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <numeric>
#include <thread>

#include "checkpoint/expect_refused.h"
#include "checkpoint/read_guard.h"
#include "checkpoint/temp_files.h"

namespace monolayer {
namespace {

using testing_files::TempDir;
using testing_files::write_file;

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

std::string pattern(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 % 251 + 1);
  return bytes;
}

// Not inlined away: the sum of every byte.
std::uint64_t sum(std::span<const std::byte> bytes) {
  const volatile std::byte* data = bytes.data();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) total += std::to_integer<std::uint64_t>(data[i]);
  return total;
}

TEST(MappedFile, HoldsTheBytesOfTheFile) {
  const TempDir dir;
  const std::string bytes = pattern(3 * kMegabyte + 17);
  Result<MappedFile> file = MappedFile::open(write_file(dir.at("f"), bytes), {true, true});
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  ASSERT_EQ(file->size(), bytes.size());
  EXPECT_EQ(std::memcmp(file->bytes().data(), bytes.data(), bytes.size()), 0);
  std::size_t calls = 0, last = 0;
  EXPECT_TRUE(file->touch_all([&](const ReadProgress& progress) {
                    ++calls;
                    EXPECT_GT(progress.bytes_done, last);
                    last = progress.bytes_done;
                    EXPECT_EQ(progress.bytes_total, bytes.size());
                    EXPECT_GT(progress.bytes_per_second, 0);
                  })
                  .ok());
  EXPECT_GE(calls, 1U);
  EXPECT_EQ(last, bytes.size());
  EXPECT_TRUE(file->touch(bytes.size() + 5, 100).ok());
  EXPECT_TRUE(file->touch(bytes.size() - 1, SIZE_MAX).ok());
}

TEST(MappedFile, EmptyFileIsAnEmptySpan) {
  const TempDir dir;
  Result<MappedFile> file = MappedFile::open(write_file(dir.at("f"), ""));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size(), 0U);
  EXPECT_TRUE(file->touch_all().ok());
  EXPECT_TRUE(file->verify_unchanged().ok());
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  const TempDir dir;
  expect_refused(MappedFile::open(dir.at("absent")).status(), Code::kNotFound, {dir.at("absent")});
  expect_refused(MappedFile::open(dir.path()).status(), Code::kInvalidFile, {"folder"});
  ASSERT_EQ(::mkfifo(dir.at("pipe").c_str(), 0600), 0);
  expect_refused(MappedFile::open(dir.at("pipe")).status(), Code::kInvalidFile, {"regular"});
  expect_refused(MappedFile::open("/dev/null").status(), Code::kInvalidFile, {"regular"});
  expect_refused(MappedFile::open(std::string("a\0b", 3)).status(), Code::kInvalidArgument,
                 {"NUL"});
}

TEST(Faults_TruncatedAfterMapping, GuardedReadNamesTheFileAndBothSizes) {
  const TempDir dir;
  const std::string path = write_file(dir.at("shard"), pattern(4 * kMegabyte));
  Result<MappedFile> file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(::truncate(path.c_str(), kMegabyte), 0);
  std::uint64_t total = 0;
  for (int round = 0; round < 3; ++round) {  // the guard works more than once
    const Status status = guard_reads([&] { total = sum(file->bytes()); });
    expect_refused(status, Code::kIoError, {path, "4194304", "1048576"});
  }
  EXPECT_EQ(total, 0U);
  // What is left can still be read, with and without a guard.
  EXPECT_TRUE(guard_reads([&] { total = sum(file->bytes().first(kMegabyte)); }).ok());
  EXPECT_GT(total, 0U);
  expect_refused(file->touch_all(), Code::kIoError, {path});
  expect_refused(file->touch(2 * kMegabyte, 1), Code::kIoError, {path});
}

TEST(Faults_TruncatedAfterMapping, OneByteIsFoundByVerify) {
  const TempDir dir;
  const std::string path = write_file(dir.at("shard"), pattern(10'000));
  Result<MappedFile> file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->verify_unchanged().ok());
  ASSERT_EQ(::truncate(path.c_str(), 9'999), 0);
  // The byte inside the last page reads as zero and nothing faults: the case verify exists for.
  EXPECT_TRUE(guard_reads([&] { sum(file->bytes()); }).ok());
  expect_refused(file->verify_unchanged(), Code::kIoError, {path, "10000", "9999"});
  expect_refused(file->touch_all(), Code::kIoError, {path, "10000", "9999"});
}

TEST(Faults_TruncatedAfterMapping, RewrittenInPlaceIsFoundByVerify) {
  const TempDir dir;
  const std::string path = write_file(dir.at("shard"), pattern(10'000));
  Result<MappedFile> file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  const timespec times[2] = {{0, UTIME_OMIT}, {12345, 678}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  expect_refused(file->verify_unchanged(), Code::kIoError, {path, "written"});
}

TEST(Faults_TruncatedAfterMapping, GuardsNest) {
  const TempDir dir;
  const std::string path = write_file(dir.at("shard"), pattern(2 * kMegabyte));
  Result<MappedFile> file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  Status inner;
  const Status outer = guard_reads([&] { inner = guard_reads([&] { sum(file->bytes()); }); });
  EXPECT_FALSE(inner.ok());
  EXPECT_TRUE(outer.ok());
  const Status again = guard_reads([&] {
    static_cast<void>(guard_reads([] {}));
    sum(file->bytes());
  });
  EXPECT_FALSE(again.ok());
}

TEST(Faults_TruncatedAfterMapping, EveryThreadHasItsOwnGuard) {
  const TempDir dir;
  const std::string path = write_file(dir.at("shard"), pattern(2 * kMegabyte));
  Result<MappedFile> file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  std::vector<std::thread> threads;
  std::array<Status, 4> statuses;
  threads.reserve(statuses.size());
  for (Status& status : statuses) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) status = guard_reads([&] { sum(file->bytes()); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) expect_refused(status, Code::kIoError, {path});
}

TEST(Faults_TruncatedAfterMappingDeath, UnguardedComputeThreadExitsWithOneLine) {
  const TempDir dir;
  const std::string path = write_file(dir.at("shard"), pattern(4 * kMegabyte));
  EXPECT_EXIT(
      {
        Result<MappedFile> file = MappedFile::open(path);
        if (!file.ok() || ::truncate(path.c_str(), 4096) != 0) ::_exit(7);
        std::thread worker([&] { sum(file->bytes()); });
        worker.join();
        ::_exit(0);
      },
      testing::ExitedWithCode(2),
      "^monolayer: error: .*shard: truncated while in use: 4194304 bytes were mapped, 4096 "
      "remain\n$");
}

TEST(Faults_TruncatedAfterMappingDeath, ForeignFaultsGoToThePreviousHandler) {
  const TempDir dir;
  const std::string ours = write_file(dir.at("ours"), pattern(4096));
  const std::string path = write_file(dir.at("foreign"), pattern(4 * kMegabyte));
  EXPECT_EXIT(
      {
        // A handler installed before ours is in place must still get its own faults.
        struct sigaction action = {};
        action.sa_handler = [](int) { ::_exit(42); };
        ::sigaction(SIGBUS, &action, nullptr);
        Result<MappedFile> file = MappedFile::open(ours);
        const int fd = ::open(path.c_str(), O_RDONLY);
        auto* data = static_cast<const std::byte*>(
            ::mmap(nullptr, 4 * kMegabyte, PROT_READ, MAP_SHARED, fd, 0));
        if (!file.ok() || ::truncate(path.c_str(), 0) != 0) ::_exit(7);
        const Status status = guard_reads([&] { sum({data, 4 * kMegabyte}); });
        ::_exit(status.ok() ? 0 : 3);
      },
      testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace monolayer

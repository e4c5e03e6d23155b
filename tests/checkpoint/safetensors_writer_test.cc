#include "checkpoint/safetensors_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expect_refused.h"
#include "checkpoint/output_file.h"
#include "checkpoint/temp_files.h"

namespace monolayer {
namespace {

using testing_files::read_file;
using testing_files::TempDir;
using testing_files::write_file;
namespace fs = std::filesystem;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::size_t files_in(const TempDir& dir) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()));
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const TempDir dir;
  const std::string path = dir.at("out.safetensors");
  const std::vector<TensorPlan> plan = {{"bytes", DType::kU8, {3}},
                                        {"float \"q\" \xc3\xa9", DType::kF32, {2, 1}},
                                        {"packed", DType::kE2M1x2, {1, 5}},
                                        {"half", DType::kBF16, {1}},
                                        {"none", DType::kF32, {0, 128}}};
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(path, plan, {{"format", "pt"}, {"a\"b", "c"}});
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  EXPECT_FALSE(fs::exists(path));
  // Any order, any pieces.
  ASSERT_TRUE(writer->write("half", as_bytes("hh")).ok());
  ASSERT_TRUE(writer->write("bytes", as_bytes("a")).ok());
  ASSERT_TRUE(writer->write("float \"q\" \xc3\xa9", as_bytes("01234567")).ok());
  ASSERT_TRUE(writer->write("bytes", as_bytes("bc")).ok());
  ASSERT_TRUE(writer->write("packed", as_bytes("ppppp")).ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_EQ(files_in(dir), 1U);
  EXPECT_EQ(fs::file_size(path), writer->file_bytes());
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->copied_bytes(), 0U);  // everything is aligned
  ASSERT_EQ(file->tensors().size(), 5U);
  EXPECT_EQ(file->metadata().at("a\"b"), "c");
  EXPECT_EQ(0, std::memcmp(file->find("bytes")->data, "abc", 3));
  EXPECT_EQ(0, std::memcmp(file->find("float \"q\" \xc3\xa9")->data, "01234567", 8));
  EXPECT_EQ(file->find("packed")->dtype, DType::kU8);
  EXPECT_EQ(file->find("none")->shape, (Shape{0, 128}));
}

TEST(SafetensorsWriter, RefusesMisuse) {
  const TempDir dir;
  const std::string path = dir.at("f");
  const auto create = [&](const std::vector<TensorPlan>& plan) {
    return SafetensorsWriter::create(path, plan).status();
  };
  expect_refused(create({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}), Code::kInvalidArgument,
                 {"'a'", "twice"});
  expect_refused(create({{"__metadata__", DType::kU8, {1}}}), Code::kInvalidArgument,
                 {"__metadata__"});
  expect_refused(create({{"a", DType::kF32, {INT64_MAX}}}), Code::kInvalidArgument,
                 {"'a'", "overflow"});
  expect_refused(create({{"\xff", DType::kU8, {1}}}), Code::kInvalidArgument, {"UTF-8"});
  expect_refused(SafetensorsWriter::create(dir.at("no/such/f"), {}).status(), Code::kNotFound,
                 {"no/such/f"});
  {
    Result<SafetensorsWriter> writer = SafetensorsWriter::create(path, {{"a", DType::kU8, {2}}});
    ASSERT_TRUE(writer.ok());
    expect_refused(writer->write("b", as_bytes("x")), Code::kInvalidArgument, {"'b'"});
    expect_refused(writer->write("a", as_bytes("xyz")), Code::kInvalidArgument, {"'a'", "3", "2"});
    ASSERT_TRUE(writer->write("a", as_bytes("x")).ok());
    expect_refused(writer->finish(), Code::kInvalidArgument, {"'a'", "1 bytes"});
  }
  EXPECT_EQ(files_in(dir), 0U);  // nothing partial stays behind
}

TEST(SafetensorsWriter, AnAbandonedWriterKeepsTheOldFile) {
  const TempDir dir;
  const std::string path = write_file(dir.at("f"), "old");
  {
    Result<SafetensorsWriter> writer = SafetensorsWriter::create(path, {{"a", DType::kU8, {2}}});
    ASSERT_TRUE(writer.ok());
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(files_in(dir), 1U);
}

TEST(OutputFile, ReplacesALinksTargetAndNothingThatIsNoFile) {
  const TempDir dir;
  const fs::path target = fs::path(dir.path()) / "target";
  const fs::path link = fs::path(dir.path()) / "link";
  write_file(target.string(), "old");
  fs::create_symlink("target", link);
  {
    auto file = OutputFile::create(link.string());
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    ASSERT_TRUE(file->write_at(0, as_bytes("new")).ok());
    ASSERT_TRUE(file->rename().ok());
  }
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ("new", read_file(target.string()));
  const std::string pipe = (fs::path(dir.path()) / "pipe").string();
  ASSERT_EQ(0, mkfifo(pipe.c_str(), 0600));
  for (const std::string& path : {pipe, fs::path(dir.path()).string(), std::string("/dev/null")}) {
    const auto file = OutputFile::create(path);
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_EQ(path + ": is there already and is not a regular file", file.status().to_string());
  }
}

TEST(ShardedWriter, SplitsByBytesAndTheReaderAgrees) {
  const TempDir dir;
  std::vector<TensorPlan> plan;
  plan.reserve(8);
  for (int i = 0; i < 7; ++i)
    plan.push_back({std::string("t").append(std::to_string(i)), DType::kU8, {100}});
  plan.push_back({"large", DType::kU8, {1000}});
  Result<ShardedWriter> writer = ShardedWriter::create(dir.path(), plan, 300);
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  EXPECT_EQ(writer->shards(), 4U);  // 3, 3, 1, and the large one alone
  for (const TensorPlan& tensor : plan) {
    const std::string bytes(static_cast<std::size_t>(tensor.shape[0]), tensor.name.back());
    ASSERT_TRUE(writer->write(tensor.name, as_bytes(bytes)).ok());
  }
  ASSERT_TRUE(writer->finish().ok());
  write_file(dir.at("config.json"), "{}");
  Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_TRUE(checkpoint->notes().empty());
  EXPECT_EQ(checkpoint->files().size(), 4U);
  ASSERT_EQ(checkpoint->tensors().size(), plan.size());
  for (const TensorView& tensor : checkpoint->tensors())
    EXPECT_EQ(static_cast<char>(tensor.data[tensor.bytes - 1]), tensor.name.back());
  expect_refused(ShardedWriter::create(dir.path(), plan, 300).status(), Code::kInvalidArgument,
                 {dir.path(), "already holds"});
}

TEST(ShardedWriter, OneShardNeedsNoIndex) {
  const TempDir dir;
  Result<ShardedWriter> writer =
      ShardedWriter::create(dir.path(), {{"a", DType::kU8, {1}}}, std::uint64_t{5} << 30);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->write("a", as_bytes("x")).ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_EQ(files_in(dir), 1U);
  EXPECT_TRUE(fs::exists(dir.at("model.safetensors")));
}

TEST(ShardedWriter, FailureLeavesNothing) {
  const TempDir dir;
  {
    Result<ShardedWriter> writer =
        ShardedWriter::create(dir.path(), {{"a", DType::kU8, {10}}, {"b", DType::kU8, {10}}}, 10);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->write("a", as_bytes("0123456789")).ok());
    expect_refused(writer->finish(), Code::kInvalidArgument, {"'b'"});
  }
  EXPECT_EQ(files_in(dir), 0U);
}

// A file size limit refuses writes the way a full disk does.
TEST(Faults_DiskFull, StatusAndNoFileLeft) {
  const TempDir dir;
  const std::string path = dir.at("f");
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status status =
      SafetensorsWriter::create(path, {{"a", DType::kU8, {std::int64_t{1} << 20}}}).status();
  const Status text = write_text_file(path, std::string(8192, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  expect_refused(status, Code::kResourceExhausted, {path});
  expect_refused(text, Code::kResourceExhausted, {path});
  EXPECT_EQ(files_in(dir), 0U);
}

TEST(Faults_DiskFull, MoreThanTheDiskHoldsIsRefusedBeforeWriting) {
  const TempDir dir;
  const std::string path = dir.at("f");
  const std::int64_t huge =
      static_cast<std::int64_t>(fs::space(dir.path()).available) + (std::int64_t{1} << 40);
  const Status status = SafetensorsWriter::create(path, {{"a", DType::kU8, {huge}}}).status();
  if (status.ok()) GTEST_SKIP() << "this file system cannot reserve space";
  expect_refused(status, Code::kResourceExhausted, {path, std::to_string(huge).substr(0, 3)});
  EXPECT_EQ(files_in(dir), 0U);
}

}  // namespace
}  // namespace monolayer

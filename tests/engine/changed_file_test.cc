// A model's file that is cut or written to while it is used: an error, never silent zeros.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/generator.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"

namespace monolayer::engine {
namespace {

namespace fs = std::filesystem;

class ChangedFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/monolayer-changed-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    fs::copy(fs::path(MONOLAYER_SOURCE_DIR) / "assets/nano", folder_,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    file_ = folder_ + "/model.safetensors";
    size_ = fs::file_size(file_);
    auto model = open_model(folder_);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(*model);
    NativeRunOptions options;
    options.threads = 1;
    options.context_tokens = 128;
    auto run = NativeRun::load(*model_, options);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    run_ = std::move(*run);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Generates up to 16 tokens; `change` is called when the third is shown.
  template <typename F>
  Status generate(F&& change) {
    GenerateOptions options;
    options.max_tokens = 16;
    options.still_valid = [this] { return model_->checkpoint.verify_unchanged(); };
    Generator generator(model_->config, run_->native(), run_->pool());
    const std::vector<std::int32_t> prompt = {1, 2, 3, 4, 5};
    shown_ = 0;
    return generator
        .generate(prompt, options,
                  [&](std::int32_t) {
                    if (++shown_ == 3) change();
                    return true;
                  })
        .status();
  }
  void truncate_to(std::uintmax_t bytes) const {
    ASSERT_EQ(::truncate(file_.c_str(), static_cast<off_t>(bytes)), 0);
  }
  void expect_error(const Status& status, const std::string& part) const {
    EXPECT_EQ(status.code(), Code::kIoError);
    EXPECT_NE(status.to_string().find(file_), std::string::npos) << status.to_string();
    EXPECT_NE(status.to_string().find(part), std::string::npos) << status.to_string();
  }

  std::string folder_, file_;
  std::uintmax_t size_ = 0;
  std::unique_ptr<OpenModel> model_;
  std::unique_ptr<NativeRun> run_;
  int shown_ = 0;
};

TEST_F(ChangedFile, UnchangedRunsToItsEnd) {
  EXPECT_TRUE(generate([] {}).ok());
  EXPECT_GT(shown_, 3);
}

// The lost byte reads as zero from the last page, and nothing faults.
TEST_F(ChangedFile, CutByOneByteEndsTheGenerationBeforeTheNextToken) {
  const Status status = generate([this] { truncate_to(size_ - 1); });
  expect_error(status, std::to_string(size_ - 1));
  EXPECT_EQ(shown_, 3);
}

TEST_F(ChangedFile, CutAfterLoadingShowsNothing) {
  truncate_to(size_ - 1);
  expect_error(generate([] {}), std::to_string(size_));
  EXPECT_EQ(shown_, 0);
}

TEST_F(ChangedFile, WrittenInPlace) {
  const Status status = generate([this] {
    const int fd = ::open(file_.c_str(), O_WRONLY);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(::pwrite(fd, "x", 1, static_cast<off_t>(size_ - 1)), 1);
    const timespec times[2] = {{1, 0}, {1, 0}};  // whatever the clock's resolution
    EXPECT_EQ(::futimens(fd, times), 0);
    ::close(fd);
  });
  expect_error(status, "written to");
  EXPECT_EQ(shown_, 3);
}

// Whole pages gone: the thread that reads one ends the program with one line and exit code 2.
TEST_F(ChangedFile, CutToAThirdEndsTheProgram) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const Status status = generate([this] { truncate_to(size_ / 3); });
        std::fprintf(stderr, "%s\n", status.to_string().c_str());
        std::exit(3);
      },
      ::testing::ExitedWithCode(2), "model.safetensors: truncated while in use");
}

}  // namespace
}  // namespace monolayer::engine

// Ranks as processes that fail, stop or are not needed any more: said in one line, within bounds.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/model_loader.h"
#include "engine/native_run.h"
#include "engine/rank_processes.h"

namespace monolayer::engine {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream in(task.path() / "children");
    for (pid_t child = 0; in >> child;) found.push_back(child);
  }
  return found;
}

class RankProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto model = open_model(std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano");
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(*model);
    options_.ranks = 2;
    options_.threads = 2;
    options_.pages = kPages;
    options_.longest_tokens = kPages * 128;
  }
  void start() {
    auto processes = RankProcesses::start(*model_, options_);
    ASSERT_TRUE(processes.ok()) << processes.status().to_string();
    processes_ = std::move(*processes);
  }

  static constexpr std::int64_t kPages = 8;
  std::unique_ptr<OpenModel> model_;
  RankProcessOptions options_;
  std::unique_ptr<RankProcesses> processes_;
};

TEST_F(RankProcessesTest, RanksThatNobodyJoinsEndAtOnce) {
  options_.ranks = 4;
  start();
  const std::vector<pid_t> ranks = children();
  EXPECT_EQ(ranks.size(), 3U);
  std::this_thread::sleep_for(milliseconds(300));  // they wait for rank 0 by now
  const auto begin = Clock::now();
  processes_.reset();
  EXPECT_LT(Clock::now() - begin, seconds(2));
  EXPECT_TRUE(children().empty());
}

TEST_F(RankProcessesTest, WhyARankCouldNotLoadIsSaid) {
  model_->config.hidden_size += 128;  // no tensor has this shape
  start();
  Status health;
  const auto limit = Clock::now() + seconds(20);
  while ((health = processes_->health()).ok() && Clock::now() < limit)
    std::this_thread::sleep_for(milliseconds(5));
  const auto expected = m3::bind_weights(model_->config, model_->checkpoint, ValueCheck::kScales);
  ASSERT_FALSE(expected.ok());
  EXPECT_EQ(health.code(), expected.status().code());
  EXPECT_EQ(health.to_string(), "rank 1: " + expected.status().to_string());
  EXPECT_EQ(processes_->health().to_string(), health.to_string());
}

TEST_F(RankProcessesTest, ARankThatReadsNoOrdersDoesNotHoldUpItsStep) {
  options_.order_timeout = milliseconds(500);
  start();
  const std::vector<pid_t> ranks = children();
  ASSERT_EQ(ranks.size(), 1U);
  {
    const auto weights = load_weights(*model_, {});
    ASSERT_TRUE(weights.ok()) << weights.status().to_string();
    auto policy = dispatch::ChainPolicy::create(model_->config, *weights,
                                                {.tensor_parallel = options_.ranks}, options_.path);
    ASSERT_TRUE(policy.ok()) << policy.status().to_string();
    auto native = processes_->join(*weights, **policy);
    ASSERT_TRUE(native.ok()) << native.status().to_string();
    auto pool = cpu::CachePool::create(model_->config, options_.cache, 1);
    ASSERT_TRUE(pool.ok());
    ASSERT_EQ(kill(ranks[0], SIGSTOP), 0);
    // More words than a socket holds.
    const std::vector<std::int32_t> tokens(1 << 20, 5);
    std::vector<std::int32_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0);
    cpu::StepSequence sequence;
    sequence.tokens = tokens;
    sequence.pages = pages;
    std::vector<float> logits;
    const auto begin = Clock::now();
    const Status status = (*native)->step({&sequence, 1}, **pool, logits, nullptr);
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
    EXPECT_NE(status.to_string().find("takes no orders"), std::string::npos) << status.to_string();
    EXPECT_LT(Clock::now() - begin, seconds(5));
    // No further order follows half a one, and the server's watch sees it.
    EXPECT_EQ((*native)->step({&sequence, 1}, **pool, logits, nullptr).code(), status.code());
    EXPECT_EQ(processes_->health().to_string(), status.to_string());
  }
  processes_.reset();
  EXPECT_TRUE(children().empty());
}

}  // namespace
}  // namespace monolayer::engine

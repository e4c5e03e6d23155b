// The embedded model: a request's tokens are the same alone and in any company.
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_harness.h"
#include "engine/generator.h"
#include "engine/native_run.h"
#include "engine/requests.h"

namespace monolayer::engine {
namespace {

const std::string kModel = std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano";

class Batching : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = open_model(kModel);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(*model);
    NativeRunOptions options;
    options.context_tokens = 128 * 128;
    options.threads = 1;
    auto run = NativeRun::load(*model_, options);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    run_ = std::move(*run);
    auto tokenizer = Tokenizer::load(kModel);
    ASSERT_TRUE(tokenizer.ok());
    tokenizer_ = std::make_unique<Tokenizer>(*tokenizer);
  }
  static void TearDownTestSuite() {
    tokenizer_.reset();
    run_.reset();
    model_.reset();
  }

  static std::vector<std::int32_t> prompt(std::uint32_t seed, std::size_t length) {
    return random_prompt(seed, length);
  }
  static Request request(std::vector<std::int32_t> ids, std::int64_t tokens, double temperature) {
    return random_request(std::move(ids), tokens, temperature);
  }

  static std::vector<std::int32_t> alone(const Request& r) {
    return answer_alone(*model_, *run_, r);
  }

  struct Setup {
    std::int64_t blocks = 128, sequences = 32, step_tokens = 512;
    bool prefix_caching = true;
  };
  // A pool of its own, so that its size can be chosen.
  std::unique_ptr<Harness> engine(const Setup& setup) {
    auto pool = cpu::CachePool::create(model_->config, {}, setup.blocks);
    EXPECT_TRUE(pool.ok());
    pool_ = std::move(*pool);
    native_model_ = std::make_unique<NativeModel>(model_->config, run_->native(), *pool_);
    EngineOptions options;
    options.scheduler.max_sequences = setup.sequences;
    options.scheduler.max_step_tokens = setup.step_tokens;
    options.prefix_caching = setup.prefix_caching;
    options.poison_dead_blocks = true;
    auto harness = std::make_unique<Harness>(*native_model_, *tokenizer_, options);
    EXPECT_TRUE(harness->status().ok()) << harness->status().to_string();
    return harness;
  }

  static std::unique_ptr<OpenModel> model_;
  static std::unique_ptr<NativeRun> run_;
  static std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<cpu::CachePool> pool_;
  std::unique_ptr<NativeModel> native_model_;
};
std::unique_ptr<OpenModel> Batching::model_;
std::unique_ptr<NativeRun> Batching::run_;
std::unique_ptr<Tokenizer> Batching::tokenizer_;

std::vector<std::size_t> lengths() { return {5, 130, 260}; }

TEST_F(Batching, SameTokensWithThirtyOneStrangersGreedyAndSeeded) {
  const auto harness = engine({.prefix_caching = false});
  std::vector<Request> requests;
  for (std::uint32_t i = 0; i < 32; ++i)
    requests.push_back(request(prompt(i, i == 7 ? 400 : 3 + i), 4, i % 2 == 0 ? 0 : 1.2));
  std::vector<std::uint64_t> ids;
  ids.reserve(requests.size());
  for (const Request& r : requests) ids.push_back(*harness->engine().submit(r));
  std::vector<std::vector<std::int32_t>> got;
  got.reserve(ids.size());
  for (const std::uint64_t id : ids) got.push_back(harness->wait(id).value_or(Answer{}).tokens);
  // The engine's thread is idle now: the model is free for the runs alone.
  for (std::size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(got[i], alone(requests[i])) << "request " << i;
  EXPECT_TRUE(harness->wait_idle());
}

TEST_F(Batching, Conformance13_PrefixHitGivesTheTokensOfAColdRun) {
  const auto harness = engine({});
  for (const std::size_t length : lengths()) {
    for (const double temperature : {0.0, 1.0}) {
      const Request r = request(prompt(900, length), 10, temperature);
      const auto cold = alone(r);
      const auto first = harness->ask(r), second = harness->ask(r);
      ASSERT_TRUE(first && second);
      EXPECT_EQ(first->tokens, cold);
      EXPECT_EQ(second->tokens, cold);
      EXPECT_EQ(second->last.cached_tokens, static_cast<std::int64_t>((length - 1) / 128 * 128));
    }
  }
}

TEST_F(Batching, FourTurnsThatShareAPrefixAreTheSameWithoutCaching) {
  // vmlx-swift #75: a page is reusable only if K, V and index keys are all valid. 700 tokens are
  // beyond what the embedded model's selection keeps (4 blocks).
  const auto cached = engine({});
  std::vector<std::int32_t> history = prompt(77, 700);
  for (int turn = 0; turn < 4; ++turn) {
    const Request r = request(history, 4, 0);
    const auto answer = cached->ask(r);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->tokens, alone(r)) << "turn " << turn;
    EXPECT_GE(answer->last.cached_tokens, turn == 0 ? 0 : 640);
    history.insert(history.end(), answer->tokens.begin(), answer->tokens.end());
    const auto more = prompt(static_cast<std::uint32_t>(turn), 60);
    history.insert(history.end(), more.begin(), more.end());
  }
}

TEST_F(Batching, ChunkedPrefillChangesNothing) {
  for (const std::int64_t step_tokens : {160, 300}) {
    SCOPED_TRACE(step_tokens);
    const auto harness = engine({.sequences = 16, .step_tokens = step_tokens});
    for (const std::size_t length : lengths()) {
      const Request r = request(prompt(31, length), 6, 0);
      const auto answer = harness->ask(r);
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->tokens, alone(r));
    }
  }
}

TEST_F(Batching, Conformance12_PreemptionInATinyPoolGivesTheTokensOfARoomyOne) {
  for (const bool caching : {true, false}) {
    SCOPED_TRACE(caching);
    const auto harness =
        engine({.blocks = 5, .sequences = 16, .step_tokens = 256, .prefix_caching = caching});
    std::vector<Request> requests;
    for (std::uint32_t i = 0; i < 8; ++i)
      requests.push_back(request(prompt(100 + i, 100 + i * 3), 40, i % 2 == 0 ? 0 : 1.0));
    std::vector<std::uint64_t> ids;
    ids.reserve(requests.size());
    for (const Request& r : requests) ids.push_back(*harness->engine().submit(r));
    std::vector<Answer> answers;
    answers.reserve(ids.size());
    for (const std::uint64_t id : ids) answers.push_back(harness->wait(id).value_or(Answer{}));
    EXPECT_GT(harness->engine().stats().preemptions, 0);
    for (std::size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(answers[i].tokens, alone(requests[i])) << "request " << i;
    EXPECT_TRUE(harness->wait_idle());
  }
}

TEST_F(Batching, OneTokenInTheLastBlockRepeatedFiftyTimesOverPoisonedPages) {
  // vllm-ascend #13391: the rest of the tail page must never count.
  const auto harness = engine({.blocks = 12});
  const Request r = request(prompt(5, 1025), 1, 0);
  const auto expected = alone(r);
  for (int i = 0; i < 50; ++i) {
    for (std::int32_t block = 0; i == 0 && block < 12; ++block) native_model_->poison(block);
    const auto answer = harness->ask(r);
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->tokens, expected) << "run " << i;
  }
}

TEST_F(Batching, PromptLogprobsMatchADirectForwardPass) {
  const auto harness = engine({});
  Request r = request(prompt(8, 300), 0, 0);
  r.prompt_logprobs = 0;
  const auto answer = harness->ask(r);
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->prompt_logprobs.size(), 299U);
  run_->rewind(0);
  const auto logits = run_->append(r.prompt, 300, nullptr);
  ASSERT_TRUE(logits.ok());
  const auto vocab = static_cast<std::size_t>(model_->config.vocab_size);
  for (std::size_t i = 0; i + 1 < 300; ++i) {
    const float* row = logits->data() + i * vocab;
    double total = 0;
    for (std::size_t j = 0; j < vocab; ++j) total += std::exp(static_cast<double>(row[j]));
    const auto next = static_cast<std::size_t>(r.prompt[i + 1]);
    ASSERT_NEAR(answer->prompt_logprobs[i].chosen.logprob,
                static_cast<double>(row[next]) - std::log(total), 1e-4);
  }
}

}  // namespace
}  // namespace monolayer::engine

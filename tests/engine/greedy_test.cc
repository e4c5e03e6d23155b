// The engine's greedy answers: the same whether the model chooses tokens in its step or the host
// from logits; and only those rows ask for ids that need nothing else.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_harness.h"
#include "engine/native_run.h"
#include "engine/requests.h"

namespace monolayer::engine {
namespace {

// Counts what is asked for; may be told not to choose tokens itself.
class Watched : public NativeModel {
 public:
  using NativeModel::NativeModel;
  Status step(std::span<const cpu::StepSequence> sequences, std::vector<float>& logits) override {
    for (const cpu::StepSequence& s : sequences)
      (s.greedy ? greedy_rows : logit_rows) += s.logit_rows;
    return NativeModel::step(sequences, logits);
  }
  bool chooses_greedily() const override { return chooses; }
  bool chooses = true;
  std::atomic<std::int64_t> greedy_rows = 0, logit_rows = 0;
};

class GreedyEngine : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string folder = std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano";
    model_ = std::move(*open_model(folder));
    NativeRunOptions options;
    options.context_tokens = 64 * 128;
    options.threads = 2;
    auto run = NativeRun::load(*model_, options);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    run_ = std::move(*run);
    tokenizer_ = std::make_unique<Tokenizer>(*Tokenizer::load(folder));
  }
  static void TearDownTestSuite() {
    tokenizer_.reset();
    run_.reset();
    model_.reset();
  }
  struct Outcome {
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<std::vector<Logprobs>> logprobs;
    std::int64_t greedy_rows = 0, logit_rows = 0;
  };
  static Outcome answer(const std::vector<Request>& requests, bool chooses,
                        cpu::ThreadTeam* team = nullptr) {
    Watched steps(model_->config, run_->native(), run_->pool());
    steps.chooses = chooses;
    EngineOptions options;
    options.team = team;
    options.scheduler.max_sequences = 16;
    options.scheduler.max_step_tokens = 256;
    Outcome outcome;
    Harness harness(steps, *tokenizer_, options);
    EXPECT_TRUE(harness.status().ok()) << harness.status().to_string();
    std::vector<std::uint64_t> ids;
    ids.reserve(requests.size());
    for (const Request& r : requests) ids.push_back(*harness.engine().submit(r));
    for (const std::uint64_t id : ids) {
      const auto got = harness.wait(id);
      EXPECT_TRUE(got);
      EXPECT_EQ(got->last.error.to_string(), Status().to_string());
      outcome.tokens.push_back(got->tokens);
      outcome.logprobs.push_back(got->logprobs);
    }
    outcome.greedy_rows = steps.greedy_rows;
    outcome.logit_rows = steps.logit_rows;
    return outcome;
  }
  static std::unique_ptr<OpenModel> model_;
  static std::unique_ptr<NativeRun> run_;
  static std::unique_ptr<Tokenizer> tokenizer_;
};
std::unique_ptr<OpenModel> GreedyEngine::model_;
std::unique_ptr<NativeRun> GreedyEngine::run_;
std::unique_ptr<Tokenizer> GreedyEngine::tokenizer_;

Request ask(std::uint32_t seed, double temperature) {
  return random_request(random_prompt(seed, 5 + seed * 11), 6, temperature);
}

TEST_F(GreedyEngine, MixedBatchesAnswerAsFromLogits) {
  std::vector<Request> requests;
  for (std::uint32_t i = 0; i < 12; ++i) requests.push_back(ask(i, i % 3 == 1 ? 1.1 : 0));
  const Outcome chosen = answer(requests, true), from_logits = answer(requests, false);
  EXPECT_EQ(chosen.tokens, from_logits.tokens);
  EXPECT_EQ(chosen.greedy_rows, 8 * 6);
  EXPECT_EQ(chosen.logit_rows, 4 * 6);
  EXPECT_EQ(from_logits.greedy_rows, 0);
  EXPECT_EQ(from_logits.logit_rows, 12 * 6);
}

// Whoever draws, and beside whom.
TEST_F(GreedyEngine, ATeamDrawsTheSameTokens) {
  std::vector<Request> requests;
  for (std::uint32_t i = 0; i < 12; ++i) {
    requests.push_back(ask(i, i % 4 == 0 ? 0 : 0.5 + 0.1 * i));
    if (i % 3 == 0) requests.back().logprobs = 3;
    if (i % 5 == 2) requests.back().rules.presence_penalty = 1.5;
    if (i % 4 == 3) {
      requests.back().sampling.top_k = 0;
      requests.back().min_tokens = 3;
      requests.back().stop_ids = {2, 3, 4};
    }
  }
  const Outcome one = answer(requests, true);
  const Outcome team = answer(requests, true, &run_->team());
  EXPECT_EQ(one.tokens, team.tokens);
  ASSERT_EQ(one.logprobs.size(), team.logprobs.size());
  for (std::size_t r = 0; r < one.logprobs.size(); ++r) {
    EXPECT_EQ(one.logprobs[r].size(), r % 3 == 0 ? one.tokens[r].size() : 0U);
    ASSERT_EQ(one.logprobs[r].size(), team.logprobs[r].size());
    for (std::size_t i = 0; i < one.logprobs[r].size(); ++i) {
      EXPECT_EQ(one.logprobs[r][i].chosen, team.logprobs[r][i].chosen);
      EXPECT_EQ(one.logprobs[r][i].top, team.logprobs[r][i].top);
    }
  }
}

TEST_F(GreedyEngine, WhatNeedsLogitsGetsThem) {
  std::vector<Request> requests(6, ask(3, 0));
  requests[0].logprobs = 1;
  requests[1].rules.frequency_penalty = 0.5;
  requests[2].rules.bias = {{5, 2.0F}};
  requests[3].prompt_logprobs = 0;
  requests[4].min_tokens = 4;  // its first four tokens may not be an end
  requests[4].stop_ids = {1};
  requests[5].sampling.temperature = 0.7;
  const Outcome chosen = answer(requests, true), from_logits = answer(requests, false);
  EXPECT_EQ(chosen.tokens, from_logits.tokens);
  EXPECT_EQ(chosen.greedy_rows, 2);  // of request 4
  EXPECT_EQ(chosen.logit_rows + 2, from_logits.logit_rows);
}

}  // namespace
}  // namespace monolayer::engine

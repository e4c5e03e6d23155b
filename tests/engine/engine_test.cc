// The engine on a made-up model: what a request may ask for, and what happens when it goes wrong.
#include "engine/engine.h"

#include <atomic>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_harness.h"

namespace monolayer::engine {
namespace {

constexpr std::int64_t kVocab = 320;

// The next token is the last one plus one. Token 300 makes the logits NaN; 301 fails the step;
// 302 loses a peer.
class CountingModel : public StepModel {
 public:
  Status step(std::span<const cpu::StepSequence> sequences, std::vector<float>& logits) override {
    logits.clear();
    ++steps;
    for (const cpu::StepSequence& sequence : sequences) {
      for (const std::int32_t token : sequence.tokens) {
        if (token == 301) return {Code::kInternal, "step", "failed on purpose"};
        if (token == 302) return {Code::kDeadlineExceeded, "rank 3", "did not answer"};
      }
      const auto count = static_cast<std::int64_t>(sequence.tokens.size());
      for (std::int64_t row = count - sequence.logit_rows; row < count; ++row) {
        const std::size_t base = logits.size();
        logits.resize(base + kVocab, 0.0F);
        const std::int32_t token = sequence.tokens[static_cast<std::size_t>(row)];
        logits[base + static_cast<std::size_t>((token + 1) % kVocab)] = 10;
        if (token == 300) logits[base] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    std::this_thread::sleep_for(delay.load());
    return ok_status();
  }
  std::int64_t vocab_size() const override { return kVocab; }
  std::int64_t blocks() const override { return 32; }

  std::atomic<std::int64_t> steps{0};
  std::atomic<std::chrono::microseconds> delay{std::chrono::microseconds(0)};
};

// Every byte is a token of its own: "a" is 97. The file spells them in GPT-2's alphabet.
Tokenizer byte_tokenizer() {
  std::string vocab;
  int other = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    char name[16];
    std::snprintf(name, sizeof(name), "\\u%04x", static_cast<unsigned>(plain ? byte : other++));
    vocab += (byte > 0 ? ",\"" : "\"") + std::string(name) + "\":" + std::to_string(byte);
  }
  const std::string json =
      R"({"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel",)"
      R"("add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,)"
      R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","merges":[],"vocab":{)" +
      vocab + "}}}";
  auto tokenizer = Tokenizer::parse(json, "bytes");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return *tokenizer;
}

class EngineTest : public ::testing::Test {
 protected:
  void start(EngineOptions options = {}) {
    options.scheduler.max_sequences = 8;
    options.scheduler.max_step_tokens = 256;
    harness_ = std::make_unique<Harness>(model_, tokenizer_, options);
    ASSERT_TRUE(harness_->status().ok()) << harness_->status().to_string();
  }
  void SetUp() override { start(); }

  static Request request(const std::string& prompt, std::int64_t max_tokens) {
    Request r;
    for (const char c : prompt) r.prompt.push_back(static_cast<unsigned char>(c));
    r.max_tokens = max_tokens;
    return r;
  }
  Answer ask(Request r) {
    auto answer = harness_->ask(std::move(r));
    EXPECT_TRUE(answer.has_value());
    return answer.value_or(Answer{});
  }

  CountingModel model_;
  Tokenizer tokenizer_ = byte_tokenizer();
  std::unique_ptr<Harness> harness_;
};

TEST_F(EngineTest, CountsOnAndStopsAtTheLimit) {
  const Answer answer = ask(request("xa", 5));
  EXPECT_EQ(answer.tokens, (std::vector<std::int32_t>{98, 99, 100, 101, 102}));
  EXPECT_EQ(*answer.finish, FinishReason::kLength);
  EXPECT_TRUE(harness_->wait_idle());
}

TEST_F(EngineTest, StopStringsCutTheTextAndKeepTheTokens) {
  Request r = request("a", 10);
  r.text.stops = {"zz", "ef"};
  const Answer answer = ask(r);
  EXPECT_EQ(*answer.finish, FinishReason::kStop);
  EXPECT_EQ(answer.last.stop_string, "ef");
  EXPECT_EQ(answer.text, "bcd");
  EXPECT_EQ(answer.tokens.back(), 'f');
}

TEST_F(EngineTest, MinTokensHoldsEndTokensAndStopStringsOff) {
  Request r = request("a", 10);
  r.eos_ids = {'c'};
  EXPECT_EQ(ask(r).tokens, (std::vector<std::int32_t>{'b', 'c'}));
  EXPECT_EQ(ask(r).last.stop_id, 'c');
  r.min_tokens = 4;
  // The end token is out of reach: the model's second choice is the lowest id, which counts on.
  const Answer held = ask(r);
  EXPECT_EQ(held.tokens[1], 0);
  EXPECT_EQ(held.tokens.size(), 10U);
  Request s = request("a", 6);
  s.text.stops = {"c"};
  s.min_tokens = 3;
  EXPECT_EQ(*ask(s).finish, FinishReason::kLength);
}

TEST_F(EngineTest, IgnoreEosLeavesStopIdsAlone) {
  Request r = request("a", 10);
  r.eos_ids = {'c'};
  r.stop_ids = {'e'};
  r.ignore_eos = true;
  EXPECT_EQ(ask(r).tokens, (std::vector<std::int32_t>{'b', 'c', 'd', 'e'}));
}

TEST_F(EngineTest, PromptLogprobsCoverEveryTokenButTheFirstAndBypassTheCache) {
  std::string prompt;
  for (int i = 0; i < 700; ++i) prompt.push_back(static_cast<char>('a' + i % 26));
  ask(request(prompt, 1));  // its blocks are findable now
  Request r = request(prompt, 0);
  r.prompt_logprobs = 1;
  const Answer answer = ask(r);
  EXPECT_EQ(*answer.finish, FinishReason::kLength);
  EXPECT_TRUE(answer.tokens.empty());
  EXPECT_EQ(answer.last.cached_tokens, 0);
  ASSERT_EQ(answer.prompt_logprobs.size(), prompt.size() - 1);
  for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
    ASSERT_EQ(answer.prompt_logprobs[i].chosen.id, prompt[i + 1]);
    ASSERT_EQ(answer.prompt_logprobs[i].top[0].id, prompt[i] + 1);
  }
}

TEST_F(EngineTest, RefusalsNameTheFieldAndTheBound) {
  const auto refusal = [&](Request r) {
    return harness_->engine().submit(std::move(r)).status().to_string();
  };
  EXPECT_EQ(refusal(request("", 1)), "prompt: is empty");
  EXPECT_EQ(refusal(request("a", 0)), "max_tokens: must be at least 1");
  Request outside = request("ab", 1);
  outside.prompt[1] = kVocab;
  EXPECT_EQ(refusal(outside), "prompt[1]: is token 320, must be from 0 to 319");
  EXPECT_NE(refusal(request("abc", 5000)).find("needs 5003 tokens, the model length is 4096"),
            std::string::npos);
  Request min = request("a", 3);
  min.min_tokens = 4;
  EXPECT_NE(refusal(min).find("from 0 to max_tokens (3)"), std::string::npos);
}

TEST_F(EngineTest, OneRequestThatCannotBeComputedFailsAlone) {
  model_.delay = std::chrono::microseconds(2000);
  const auto healthy = harness_->engine().submit(request("a", 100));
  ASSERT_TRUE(healthy.ok());
  ASSERT_TRUE(harness_->wait_tokens(*healthy, 3));
  for (const std::int32_t poison : {300, 301}) {
    Request r = request("a", 5);
    r.prompt.push_back(poison);
    const Answer failed = ask(r);
    EXPECT_EQ(*failed.finish, FinishReason::kError);
    EXPECT_EQ(failed.last.error.code(), Code::kInternal);
    EXPECT_TRUE(failed.text.empty());
  }
  const auto answer = harness_->wait(*healthy);
  ASSERT_TRUE(answer);
  EXPECT_EQ(*answer->finish, FinishReason::kLength);
  EXPECT_EQ(answer->tokens.size(), 100U);
  EXPECT_TRUE(harness_->wait_idle());
}

TEST_F(EngineTest, ALostPeerEndsEverythingAndNothingMoreIsTaken) {
  model_.delay = std::chrono::microseconds(2000);
  const auto other = harness_->engine().submit(request("a", 200));
  ASSERT_TRUE(harness_->wait_tokens(*other, 1));
  Request r = request("a", 5);
  r.prompt.push_back(302);
  EXPECT_EQ(*ask(r).finish, FinishReason::kError);
  EXPECT_EQ(*harness_->wait(*other)->finish, FinishReason::kError);
  EXPECT_TRUE(harness_->engine().stats().failed);
  EXPECT_EQ(harness_->engine().submit(request("a", 1)).status().code(), Code::kFailedPrecondition);
}

TEST_F(EngineTest, AbortFreesBlocksWithinTwoSteps) {
  model_.delay = std::chrono::microseconds(5000);
  const auto id = harness_->engine().submit(request(std::string(300, 'a'), 1000));
  ASSERT_TRUE(harness_->wait_tokens(*id, 2));
  EXPECT_GT(harness_->engine().stats().blocks_used, 0);
  const std::int64_t before = model_.steps;
  harness_->engine().abort(*id);
  const auto answer = harness_->wait(*id);
  ASSERT_TRUE(answer);
  EXPECT_EQ(*answer->finish, FinishReason::kAbort);
  EXPECT_LE(model_.steps - before, 2);
  EXPECT_TRUE(harness_->wait_idle());
}

TEST_F(EngineTest, AbortOfAWaitingRequestAndOfNobody) {
  model_.delay = std::chrono::microseconds(2000);
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 20; ++i) {
    const auto id = harness_->engine().submit(request("a", 60));
    ASSERT_TRUE(id.ok());
    ids.push_back(*id);
  }
  for (std::size_t i = 8; i < ids.size(); ++i) harness_->engine().abort(ids[i]);
  harness_->engine().abort(123456);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto answer = harness_->wait(ids[i]);
    ASSERT_TRUE(answer);
    EXPECT_EQ(*answer->finish, i < 8 ? FinishReason::kLength : FinishReason::kAbort);
  }
  EXPECT_TRUE(harness_->wait_idle());
}

TEST_F(EngineTest, AFullQueueIsOverloadAndADrainingEngineTakesNothing) {
  harness_.reset();
  EngineOptions options;
  options.max_waiting = 4;
  start(options);
  model_.delay = std::chrono::microseconds(2000);
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    const auto id = harness_->engine().submit(request("a", 50));
    if (id.ok()) continue;
    EXPECT_EQ(id.status().code(), Code::kResourceExhausted);
    ++refused;
  }
  EXPECT_GE(refused, 28 - 4);
  harness_->engine().drain();
  EXPECT_EQ(harness_->engine().submit(request("a", 1)).status().code(), Code::kFailedPrecondition);
}

TEST_F(EngineTest, DestructionAnswersWhoeverStillWaits) {
  model_.delay = std::chrono::microseconds(2000);
  const auto id = harness_->engine().submit(request("a", 1000));
  ASSERT_TRUE(harness_->wait_tokens(*id, 1));
  EXPECT_EQ(harness_->engine().stats().running, 1);
  harness_.reset();
}

TEST_F(EngineTest, SiblingsShareThePromptAndDifferBySeed) {
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 4; ++i) {
    Request r = request(std::string(300, 'a'), 20);
    r.sampling.temperature = 20;
    r.sampling.seed = i;
    requests.push_back(r);
  }
  const auto ids = harness_->engine().submit_all(requests, true);
  ASSERT_TRUE(ids.ok());
  std::vector<std::vector<std::int32_t>> seen;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto answer = harness_->wait((*ids)[i]);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->last.cached_tokens, i == 0 ? 0 : 256);
    for (const auto& other : seen) EXPECT_NE(answer->tokens, other);
    seen.push_back(answer->tokens);
  }
}

}  // namespace
}  // namespace monolayer::engine

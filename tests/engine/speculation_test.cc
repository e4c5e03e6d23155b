// The same tokens with and without guesses, whatever is guessed and however the run is cut.
#include <fstream>

#include "engine/speculation_harness.h"

namespace monolayer::engine {
namespace {

TEST_F(Speculation, GreedyAndSeededTokensAreThoseWithoutADraft) {
  for (const std::int64_t k : {1, 3, 7}) {
    SCOPED_TRACE(k);
    const auto harness = engine({.k = k});
    for (const double temperature : {0.0, 1.2}) {
      const Request r = request(prompt(40, 21), 24, temperature);
      const auto answer = harness->ask(r);
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->tokens, alone(r));
      EXPECT_EQ(*answer->finish, FinishReason::kLength);
    }
    expect_healthy(*harness);
    EXPECT_GT(harness->engine().stats().speculation.guesses, 0);
  }
}

// Every number of accepted guesses from none to all, and rows that cross a border of 128 tokens.
TEST_F(Speculation, AnyNumberOfAcceptedGuessesAcrossABlockBorder) {
  for (std::int64_t accepted = 0; accepted <= 3; ++accepted) {
    for (const std::size_t length : {121, 124, 126, 127, 128}) {
      SCOPED_TRACE(std::to_string(accepted) + " accepted after " + std::to_string(length));
      const Request r = request(prompt(50, length), 16, length % 2 == 0 ? 0 : 1.0);
      const auto expected = alone(r);
      Script script;
      script.know(r, expected);
      script.right = [accepted](std::int64_t) { return accepted; };
      const auto harness = engine({.rewrite = script});
      const auto answer = harness->ask(r);
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->tokens, expected);
      expect_healthy(*harness);
      const SpeculationStats stats = harness->engine().stats().speculation;
      if (accepted == 0) {
        EXPECT_EQ(stats.accepted, 0);
      }
      // One token of the prompt's step, then a step for each accepted + 1.
      EXPECT_EQ(harness->engine().stats().steps, 1 + (15 + accepted) / (accepted + 1));
    }
  }
}

// All of an answer's properties inside accepted runs: stops, exact lengths, min_tokens, logprobs,
// penalties, bias.
TEST_F(Speculation, Conformance3_StopsLengthsLogprobsAndRulesInsideAcceptedRuns) {
  const Request base = request(prompt(61, 30), 14, 0);
  const auto free_run = alone(base);
  const auto piece = [&](std::size_t i) { return tokenizer_->decode({&free_run[i], 1}, false); };
  std::vector<Request> requests;
  for (std::int64_t length = 1; length <= 6; ++length) {
    requests.push_back(base);
    requests.back().max_tokens = length;
  }
  for (const std::size_t at : {2, 5, 7}) {
    requests.push_back(base);
    requests.back().stop_ids = {free_run[at]};
    requests.push_back(requests.back());
    requests.back().min_tokens = 9;
    requests.push_back(base);
    requests.back().text.stops = {piece(at), piece(at) + piece(at + 1)};
    requests.push_back(requests.back());
    requests.back().text.include_stop = true;
    requests.back().min_tokens = 6;
  }
  requests.push_back(base);
  requests.back().logprobs = 3;
  requests.push_back(request(prompt(62, 40), 16, 1.1));
  requests.back().logprobs = 0;
  requests.back().rules.presence_penalty = 1.5;
  requests.back().rules.frequency_penalty = 0.7;
  requests.push_back(request(prompt(63, 12), 16, 0));
  requests.back().rules.repetition_penalty = 1.8;
  requests.back().rules.bias = {{free_run[0], 4.0F}, {7, -100.0F}};
  requests.push_back(request(prompt(64, 140), 0, 0));
  requests.back().prompt_logprobs = 2;

  std::vector<Answer> plain;
  {
    const auto harness = engine({.k = 0});
    for (const Request& r : requests) plain.push_back(harness->ask(r).value_or(Answer{}));
  }
  for (const std::int64_t right : {0, 2, 3}) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(std::to_string(right) + " right, request " + std::to_string(i));
      Script script;
      script.know(requests[i], plain[i].tokens);
      script.right = [right](std::int64_t) { return right; };
      const auto harness = engine({.rewrite = script});
      const auto answer = harness->ask(requests[i]);
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->tokens, plain[i].tokens);
      EXPECT_EQ(answer->text, plain[i].text);
      EXPECT_EQ(answer->finish, plain[i].finish);
      EXPECT_EQ(answer->last.stop_id, plain[i].last.stop_id);
      EXPECT_EQ(answer->last.stop_string, plain[i].last.stop_string);
      ASSERT_EQ(answer->logprobs.size(), plain[i].logprobs.size());
      for (std::size_t t = 0; t < plain[i].logprobs.size(); ++t) {
        EXPECT_EQ(answer->logprobs[t].chosen, plain[i].logprobs[t].chosen);
        EXPECT_EQ(answer->logprobs[t].top, plain[i].logprobs[t].top);
      }
      EXPECT_EQ(answer->prompt_logprobs.size(), plain[i].prompt_logprobs.size());
      expect_healthy(*harness);
    }
  }
}

// Company, cached prefixes, pieces of prompts and preemption at once.
TEST_F(Speculation, Conformance12_StrangersChunksAndPreemptionChangeNothing) {
  struct Case {
    std::int64_t blocks, step_tokens, sequences;
    bool caching;
  };
  for (const Case& c : {Case{64, 512, 16, true}, Case{64, 512, 16, false}, Case{64, 192, 8, true},
                        Case{5, 256, 16, true}, Case{5, 256, 16, false}}) {
    SCOPED_TRACE(std::to_string(c.blocks) + " blocks, steps of " + std::to_string(c.step_tokens));
    std::vector<Request> requests;
    std::vector<std::vector<std::int32_t>> expected;
    Script script;
    script.right = [](std::int64_t generated) { return generated % 4; };
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::size_t length = c.blocks > 5 && i % 3 == 0 ? 300 + i : 100 + i * 3;
      requests.push_back(request(prompt(100 + i, length), 34, i % 2 == 0 ? 0 : 1.0));
      expected.push_back(alone(requests.back()));
      script.know(requests.back(), expected.back());
    }
    const auto harness = engine({.blocks = c.blocks,
                                 .sequences = c.sequences,
                                 .step_tokens = c.step_tokens,
                                 .prefix_caching = c.caching,
                                 .rewrite = script});
    for (int round = 0; round < 2; ++round) {
      std::vector<std::uint64_t> ids;
      ids.reserve(requests.size());
      for (const Request& r : requests) ids.push_back(*harness->engine().submit(r));
      for (std::size_t i = 0; i < ids.size(); ++i)
        EXPECT_EQ(harness->wait(ids[i]).value_or(Answer{}).tokens, expected[i]) << i;
    }
    expect_healthy(*harness);
    if (c.blocks == 5) {
      EXPECT_GT(harness->engine().stats().preemptions, 0);
    }
    EXPECT_GT(harness->engine().stats().speculation.accepted, 0);
  }
}

// What the draft guesses, by place in the sequence.
using Guesses = std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t>;

std::function<std::int32_t(const Sequence&, std::int64_t, std::int32_t)> recorder(
    std::shared_ptr<Guesses> guesses) {
  return [guesses = std::move(guesses)](const Sequence& sequence, std::int64_t index,
                                        std::int32_t guess) {
    (*guesses)[{sequence.size(), index}] = guess;
    return guess;
  };
}

// A prefix hit brings the draft's state back exactly: it guesses what it guessed in the cold run,
// whatever ran in between.
TEST_F(Speculation, Conformance13_And14_GuessesAfterAPrefixHitAreThoseOfAColdRun) {
  const auto fp8 = load("native", 1, "fp8");
  for (NativeRun* run : {static_cast<NativeRun*>(nullptr), fp8.get()}) {
    SCOPED_TRACE(run == nullptr ? "bf16" : "fp8");
    for (const std::size_t length : {129, 200, 256, 400}) {
      SCOPED_TRACE(length);
      const Request r = request(prompt(70, length), 10, 0);
      std::vector<std::int32_t> stranger = prompt(70, 128);
      for (std::int32_t& id : stranger) id = (id + 1) % 1900;
      const auto guesses = std::make_shared<Guesses>();
      const auto harness = engine({.run = run, .rewrite = recorder(guesses)});
      const auto cold = harness->ask(r);
      ASSERT_TRUE(cold && cold->last.cached_tokens == 0);
      const Guesses first = *guesses;
      // A sequence that shares the blocks but not the token after them.
      std::vector<std::int32_t> other = r.prompt;
      other.resize(128);
      other.push_back((r.prompt[128] + 1) % 1900);
      ASSERT_TRUE(harness->ask(request(other, 3, 0)));
      ASSERT_TRUE(harness->ask(request(stranger, 3, 0)));
      ASSERT_TRUE(harness->wait_idle());
      guesses->clear();
      const auto hit = harness->ask(r);
      ASSERT_TRUE(hit);
      EXPECT_EQ(hit->last.cached_tokens, static_cast<std::int64_t>((length - 1) / 128 * 128));
      EXPECT_EQ(hit->tokens, cold->tokens);
      if (run == nullptr) {
        EXPECT_EQ(cold->tokens, alone(r));
      }
      EXPECT_EQ(*guesses, first);
      expect_healthy(*harness);
    }
  }
}

// Blocks of generated tokens are findable too, and carry what the draft needs.
TEST_F(Speculation, BlocksFilledByAcceptedRunsAreReused) {
  const Request r = request(prompt(75, 100), 200, 0);
  const auto expected = alone(r);
  Script script;
  script.know(r, expected);
  script.right = [](std::int64_t generated) { return generated % 4; };
  const auto harness = engine({.rewrite = script});
  ASSERT_EQ(harness->ask(r)->tokens, expected);
  std::vector<std::int32_t> longer = r.prompt;
  longer.insert(longer.end(), expected.begin(), expected.end());
  const Request next = request(longer, 12, 0);
  const auto answer = harness->ask(next);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->last.cached_tokens, 256);
  expect_healthy(*harness);
  EXPECT_EQ(answer->tokens, alone(next));
}

TEST_F(Speculation, FusedStepsAndRanksGiveTheSameTokensAndGuesses) {
  const Request r = request(prompt(80, 126), 12, 0), seeded = request(prompt(81, 40), 12, 1.0);
  const auto expected = alone(r), expected_seeded = alone(seeded);
  Guesses first;
  for (const auto& [path, ranks] : std::vector<std::pair<std::string, int>>{
           {"native", 1}, {"mono", 1}, {"native", 2}, {"mono", 2}, {"native", 4}, {"mono", 4}}) {
    SCOPED_TRACE(path + " on " + std::to_string(ranks));
    const auto run = load(path, ranks);
    const auto guesses = std::make_shared<Guesses>();
    {
      const auto harness = engine({.run = run.get(), .rewrite = recorder(guesses)});
      const auto answer = harness->ask(r);
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->tokens, expected);
      expect_healthy(*harness);
    }
    if (first.empty()) first = *guesses;
    EXPECT_EQ(*guesses, first);
    Script script;
    script.know(seeded, expected_seeded);
    script.right = [](std::int64_t generated) { return (generated + 1) % 4; };
    const auto harness = engine({.run = run.get(), .rewrite = script});
    EXPECT_EQ(harness->ask(seeded)->tokens, expected_seeded);
    expect_healthy(*harness);
    if (path == "mono") {
      EXPECT_GT(run->native().paths().mono, 0);
    }
  }
}

TEST_F(Speculation, AbortInTheMiddleLeavesNothing) {
  const auto harness = engine({.k = 7});
  for (const std::size_t tokens : {1, 3, 9, 20}) {
    const auto id = harness->engine().submit(request(prompt(90, 120), 2000, 0));
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE(harness->wait_tokens(*id, tokens));
    harness->engine().abort(*id);
    EXPECT_EQ(harness->wait(*id).value_or(Answer{}).finish, FinishReason::kAbort);
  }
  expect_healthy(*harness);
  const Request r = request(prompt(90, 120), 12, 0);
  EXPECT_EQ(harness->ask(r)->tokens, alone(r));
}

// A draft that gives no numbers costs speed, never tokens.
TEST_F(Speculation, ABrokenDraftIsSwitchedOff) {
  const auto harness = engine({});
  const Request r = request(prompt(95, 260), 40, 0);
  const auto expected = alone(r);
  EXPECT_EQ(harness->ask(r)->tokens, expected);
  ASSERT_TRUE(harness->wait_idle());
  for (std::int32_t block = 0; block < 64; ++block) speculator_->poison(block);
  const auto answer = harness->ask(r);
  EXPECT_EQ(answer->tokens, expected);
  EXPECT_EQ(answer->last.cached_tokens, 256);
  ASSERT_TRUE(harness->wait_idle());
  EXPECT_EQ(harness->engine().stats().speculation.failures, 1);
}

TEST_F(Speculation, MemoryThatIsNotThereIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the process where memory is refused";
#endif
  const auto harness = engine({});
  const Status status = speculator_->prepare_for(std::int64_t{1} << 42, 4);
  EXPECT_EQ(Code::kResourceExhausted, status.code()) << status.to_string();
}

// Two requests that need 45 % of the caches each run side by side.
TEST_F(Speculation, FaultA9_Vllm51494_TwoRequestsOf45PercentOfTheCachesRunTogether) {
  const auto harness = engine({.blocks = 40, .step_tokens = 1024});
  std::vector<std::uint64_t> ids;
  for (std::uint32_t i = 0; i < 2; ++i)
    ids.push_back(*harness->engine().submit(request(prompt(97 + i, 18 * 128 - 60), 60, 0)));
  std::int64_t together = 0;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (together < 2 && std::chrono::steady_clock::now() < end) {
    together = std::max(together, harness->engine().stats().running);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(together, 2);
  for (const std::uint64_t id : ids)
    EXPECT_EQ(harness->wait(id).value_or(Answer{}).tokens.size(), 60U);
  EXPECT_EQ(harness->engine().stats().preemptions, 0);
  expect_healthy(*harness);
}

std::int64_t resident_peak() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

// No reader may copy the draft's pool: with 512 MiB of it, a long cached prompt must not move the
// peak by more than its own working set.
TEST_F(Speculation, Conformance15_FaultC19_Atom2106_NothingGrowsWithThePool) {
  constexpr std::int64_t kBlocks = 8192;
  // The target's own caches of as many blocks must be had too: 18 GB, of which little is touched.
  if (const auto caches = cpu::CachePool::create(model_->config, {}, kBlocks); !caches.ok())
    GTEST_SKIP() << caches.status().to_string();
  const auto harness = engine({.blocks = kBlocks, .step_tokens = 1024});
  const auto pool = static_cast<std::int64_t>(draft_pool_->bytes());
  ASSERT_GE(pool, std::int64_t{512} << 20);
  const Request r = request(prompt(99, 3000), 8, 0);
  ASSERT_TRUE(harness->ask(r));  // warm-up: cold, then with the largest cached prefix
  ASSERT_TRUE(harness->ask(r));
  const std::int64_t before = resident_peak();
  const auto answer = harness->ask(r);
  EXPECT_EQ(answer->last.cached_tokens, 2944);
  EXPECT_LT(resident_peak() - before, std::int64_t{4} << 20);
}

}  // namespace
}  // namespace monolayer::engine

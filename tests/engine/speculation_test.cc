// The same tokens with and without guesses, whatever is guessed and however the run is cut.
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
    const SpeculationStats stats = harness->engine().stats().speculation;
    EXPECT_GT(stats.guesses, 0);
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
      const std::int64_t steps = 1 + (15 + accepted) / (accepted + 1);
      EXPECT_EQ(harness->engine().stats().steps, steps);
    }
  }
}

}  // namespace
}  // namespace monolayer::engine

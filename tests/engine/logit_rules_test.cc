#include "engine/logit_rules.h"

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "engine/sampler.h"

namespace monolayer::engine {
namespace {

std::vector<float> applied(const LogitRules& rules, const std::vector<std::int32_t>& prompt,
                           const std::vector<std::int32_t>& said,
                           const std::vector<std::int32_t>& banned = {}) {
  LogitProcessor processor(rules, prompt);
  for (const std::int32_t id : said) processor.generated(id);
  std::vector<float> logits{1, -1, 2, -2, 4};
  processor.apply(logits, banned);
  return logits;
}

TEST(LogitRules, PresenceCountsOnceAndFrequencyEachTime) {
  LogitRules rules;
  rules.presence_penalty = 0.5;
  rules.frequency_penalty = 0.25;
  EXPECT_EQ(applied(rules, {0, 1, 2}, {2, 4, 2}), (std::vector<float>{1, -1, 1, -2, 3.25F}));
}

TEST(LogitRules, RepetitionCoversThePromptToo) {
  LogitRules rules;
  rules.repetition_penalty = 2;
  EXPECT_EQ(applied(rules, {0, 1, 1}, {4}), (std::vector<float>{0.5F, -2, 2, -2, 2}));
}

TEST(LogitRules, BiasComesBeforePenaltiesAndBansWin) {
  LogitRules rules;
  rules.bias = {{2, 6.0F}, {3, 100.0F}};
  rules.repetition_penalty = 2;
  const float never = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(applied(rules, {2}, {}, {3}), (std::vector<float>{1, -1, 4, never, 4}));
  // Ids outside the vocabulary ban nothing.
  EXPECT_EQ(applied({}, {}, {}, {-1, 5, 0}), (std::vector<float>{never, -1, 2, -2, 4}));
}

TEST(LogitRules, PenaltiesNearZeroMakeNoInfinities) {
  LogitRules rules;
  rules.repetition_penalty = 1e-300;
  ASSERT_TRUE(check_rules(rules, 5).ok());
  const std::vector<float> logits = applied(rules, {0, 1, 3, 4}, {}, {3});
  EXPECT_EQ(logits[0], std::numeric_limits<float>::max());
  EXPECT_EQ(logits[1], 0);
  EXPECT_EQ(logits[2], 2);
  EXPECT_EQ(logits[3], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(logits[4], std::numeric_limits<float>::max());
  const SamplingParams params{.temperature = 1, .top_p = 0.9};
  std::set<std::int32_t> seen;
  for (std::int64_t i = 0; i < 200; ++i) seen.insert(sample_finite(logits, params, i));
  EXPECT_EQ(seen, (std::set<std::int32_t>{0, 4}));
}

TEST(LogitRules, RefusalsNameTheParameterAndItsBound) {
  const auto refused = [](auto change) {
    LogitRules rules;
    change(rules);
    return check_rules(rules, 10);
  };
  const double nan = std::nan("");
  EXPECT_TRUE(check_rules({}, 10).ok());
  EXPECT_EQ(refused([](auto& r) { r.presence_penalty = 2.1; }).subject(), "presence_penalty");
  EXPECT_EQ(refused([&](auto& r) { r.frequency_penalty = nan; }).subject(), "frequency_penalty");
  EXPECT_EQ(refused([](auto& r) { r.repetition_penalty = 0; }).subject(), "repetition_penalty");
  EXPECT_NE(refused([](auto& r) {
              r.bias = {{10, 1.0F}};
            })
                .message()
                .find("0 to 9"),
            std::string::npos);
  EXPECT_EQ(refused([](auto& r) { r.bias = {{1, 101.0F}}; }).subject(), "logit_bias");
}

TEST(Sampling, MinPKeepsTokensNearTheBest) {
  // Probabilities 0.5, 0.3, 0.15, 0.05.
  const std::vector<float> logits{std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  SamplingParams params;
  params.temperature = 1;
  params.min_p = 0.5;  // from 0.25 up
  std::vector<int> counts(4, 0);
  for (std::int64_t i = 0; i < 8000; ++i)
    ++counts[static_cast<std::size_t>(*sample_token(logits, params, i))];
  EXPECT_EQ(counts[2] + counts[3], 0);
  EXPECT_NEAR(counts[0] / 8000.0, 0.5 / 0.8, 0.02);
  params.min_p = 1.5;
  EXPECT_EQ(check_sampling(params).subject(), "min_p");
}

TEST(Sampling, LogprobsAreOfTheRawDistribution) {
  const std::vector<float> logits{1, 3, 2, 3};
  const Logprobs got = token_logprobs(logits, 2, 3);
  double total = 0;
  for (const float x : logits) total += std::exp(static_cast<double>(x));
  const auto expected = [&](std::size_t i) {
    return std::log(std::exp(static_cast<double>(logits[i])) / total);
  };
  EXPECT_NEAR(got.chosen.logprob, expected(2), 1e-6);
  EXPECT_EQ(got.rank, 3);
  ASSERT_EQ(got.top.size(), 3U);
  EXPECT_EQ(got.top[0].id, 1);
  EXPECT_EQ(got.top[1].id, 3);
  EXPECT_EQ(got.top[2].id, 2);
  EXPECT_NEAR(got.top[0].logprob, expected(1), 1e-6);
}

}  // namespace
}  // namespace monolayer::engine

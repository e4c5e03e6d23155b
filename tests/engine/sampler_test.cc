#include "engine/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace monolayer::engine {
namespace {

TEST(Greedy, LowestIdWinsTies) {
  EXPECT_EQ(greedy_token(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(greedy_token(std::vector<float>{-1, -1}), 0);
}

TEST(Sample, TemperatureZeroIsGreedyWhateverTheSeed) {
  const std::vector<float> logits{0.1F, 2.0F, 1.9F};
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    EXPECT_EQ(*sample_token(logits, {.temperature = 0, .seed = seed}, 7), 1);
}

// Frequencies against probabilities computed with the C library: a chi-square over 60,000 draws.
void expect_distribution(const std::vector<float>& logits, const SamplingParams& base,
                         const std::map<int, double>& expected) {
  std::map<int, int> counts;
  constexpr int kDraws = 60000;
  SamplingParams params = base;
  for (int i = 0; i < kDraws; ++i) {
    params.seed = static_cast<std::uint64_t>(i % 300);
    ++counts[*sample_token(logits, params, i / 300)];
  }
  double chi = 0;
  for (const auto& [id, p] : expected) {
    const double mean = p * kDraws;
    chi += (counts[id] - mean) * (counts[id] - mean) / mean;
  }
  for (const auto& [id, n] : counts) EXPECT_TRUE(expected.count(id)) << "drew " << id;
  // 99.99 % quantile is below 9 + 5 * sqrt(2 n) for these few cells.
  EXPECT_LT(chi, 9 + 5 * std::sqrt(2.0 * static_cast<double>(expected.size())));
}

std::map<int, double> softmax(const std::map<int, double>& logits, double temperature) {
  std::map<int, double> p;
  double sum = 0;
  for (const auto& [id, l] : logits) sum += p[id] = std::exp(l / temperature);
  for (auto& [id, v] : p) v /= sum;
  return p;
}

TEST(Sample, FollowsTheSoftmax) {
  const std::vector<float> logits{0.0F, 1.0F, -1.0F, 0.5F};
  expect_distribution(logits, {.temperature = 0.7},
                      softmax({{0, 0.0}, {1, 1.0}, {2, -1.0}, {3, 0.5}}, 0.7));
}

TEST(Sample, TopKKeepsTheBestLowestIdsAmongEquals) {
  const std::vector<float> logits{1.0F, 2.0F, 1.0F, 1.0F};
  expect_distribution(logits, {.temperature = 1, .top_k = 2}, softmax({{1, 2.0}, {0, 1.0}}, 1));
  expect_distribution(logits, {.temperature = 1, .top_k = 1}, {{1, 1.0}});
}

TEST(Sample, TopPKeepsTheSmallestSetReachingIt) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const float ln2 = std::log(2.0F);
  const std::vector<float> logits{2 * ln2, 0.0F, ln2, 0.0F};
  SamplingParams params{.temperature = 1, .top_p = 0.7};
  expect_distribution(logits, params, {{0, 0.5 / 0.75}, {2, 0.25 / 0.75}});
  params.top_p = 0.4;
  expect_distribution(logits, params, {{0, 1.0}});
  params.top_p = 0.8;
  expect_distribution(logits, params, {{0, 4.0 / 7}, {2, 2.0 / 7}, {1, 1.0 / 7}});
}

TEST(Sample, TopPAppliesToWhatTopKLeft) {
  const float ln2 = std::log(2.0F);
  const std::vector<float> logits{2 * ln2, 0.0F, ln2, 0.0F};
  // After top-k 2: 2/3 and 1/3, so 0.6 keeps the best alone; of the full set it would keep two.
  expect_distribution(logits, {.temperature = 1, .top_p = 0.6, .top_k = 2}, {{0, 1.0}});
}

TEST(Sample, SeedAndPositionDecide) {
  const std::vector<float> logits(1000, 0.0F);
  const SamplingParams params{.temperature = 1, .seed = 42};
  std::set<int> seen;
  for (int position = 0; position < 64; ++position) {
    const int first = *sample_token(logits, params, position);
    EXPECT_EQ(first, *sample_token(logits, params, position));
    seen.insert(first);
  }
  EXPECT_GT(seen.size(), 55U);
  SamplingParams other = params;
  other.seed = 43;
  int same = 0;
  for (int position = 0; position < 64; ++position)
    same += *sample_token(logits, params, position) == *sample_token(logits, other, position);
  EXPECT_LT(same, 4);
}

TEST(Sample, NonFiniteLogitsAreAnError) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> logits{0.0F, bad, 1.0F};
    EXPECT_FALSE(sample_token(logits, {}, 0).ok());
    EXPECT_FALSE(sample_token(logits, {.temperature = 1}, 0).ok());
  }
  EXPECT_FALSE(sample_token({}, {}, 0).ok());
}

TEST(Sample, VeryUnequalLogitsStayFinite) {
  const std::vector<float> logits{-3e38F, 3e38F, 0.0F};
  EXPECT_EQ(*sample_token(logits, {.temperature = 1e-6}, 0), 1);
  EXPECT_EQ(*sample_token(logits, {.temperature = 100}, 0), 1);
}

TEST(CheckSampling, NamesTheParameter) {
  EXPECT_TRUE(check_sampling({}).ok());
  EXPECT_EQ(check_sampling({.temperature = -1}).subject(), "temperature");
  EXPECT_EQ(check_sampling({.temperature = std::nan("")}).subject(), "temperature");
  EXPECT_EQ(check_sampling({.top_p = 0}).subject(), "top_p");
  EXPECT_EQ(check_sampling({.top_p = 1.5}).subject(), "top_p");
  EXPECT_EQ(check_sampling({.top_k = -1}).subject(), "top_k");
}

TEST(CounterUniform, IsUniformOverPositionsAndSeeds) {
  std::vector<int> bins(16);
  for (std::uint64_t s = 0; s < 100; ++s)
    for (std::uint64_t p = 0; p < 160; ++p) {
      const double u = counter_uniform(s, p);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      ++bins[static_cast<std::size_t>(u * 16)];
    }
  for (const int n : bins) EXPECT_NEAR(n, 1000, 150);
}

}  // namespace
}  // namespace monolayer::engine

#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
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

// The same filters by sorting the whole vocabulary, weights by the C library.
std::int32_t by_sorting(const std::vector<float>& logits, const SamplingParams& p,
                        std::int64_t position) {
  std::vector<std::int32_t> ids(logits.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) { return logit(a) > logit(b); });
  const auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(logit(id)) - logit(ids.front())) / p.temperature);
  };
  std::vector<std::int32_t> kept = ids;
  if (p.top_k > 0) kept.resize(std::min(kept.size(), static_cast<std::size_t>(p.top_k)));
  double total = 0, sum = 0;
  for (const std::int32_t id : kept) total += weight(id);
  std::size_t count = 0;
  while (count < kept.size() && sum < p.top_p * total) sum += weight(kept[count++]);
  if (p.top_p < 1) kept.resize(count);
  std::erase_if(kept, [&](std::int32_t id) { return weight(id) < p.min_p; });
  std::sort(kept.begin(), kept.end());
  total = sum = 0;
  for (const std::int32_t id : kept) total += weight(id);
  const double target = counter_uniform(p.seed, static_cast<std::uint64_t>(position)) * total;
  for (const std::int32_t id : kept) {
    sum += weight(id);
    if (sum > target) return id;
  }
  return kept.back();
}

TEST(Sample, LargeVocabulariesAgainstSortingThemWhole) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 1);
  SamplerScratch scratch;
  int draws = 0;
  for (const std::size_t size : {1U, 255U, 256U, 257U, 3000U, 20011U}) {
    for (const float spread : {0.0F, 0.5F, 3.0F, 20.0F}) {
      std::vector<float> logits(size);
      for (float& l : logits) l = normal(random) * spread;
      if (spread == 3.0F)  // ties, and both zeros
        for (float& l : logits) l = std::round(l * 2) / 2;
      if (spread == 20.0F)  // what rules have banned
        for (std::size_t i = 1; i < size; i += 3)
          logits[i] = -std::numeric_limits<float>::infinity();
      for (const double top_p : {1.0, 0.95, 0.3, 1e-9}) {
        for (const std::int64_t top_k : {0, 1, 40, 2500}) {
          for (const double min_p : {0.0, 0.05}) {
            const SamplingParams p{.temperature = 0.4 + 0.3 * (draws % 5),
                                   .top_p = top_p,
                                   .top_k = top_k,
                                   .min_p = min_p,
                                   .seed = static_cast<std::uint64_t>(draws)};
            ASSERT_EQ(sample_finite(logits, p, draws, scratch), by_sorting(logits, p, draws))
                << size << " tokens of spread " << spread << ", top-p " << top_p << ", top-k "
                << top_k << ", min-p " << min_p;
            ++draws;
          }
        }
      }
    }
  }
}

TEST(Sample, TemperaturesThatTellNeighbouringFloatsApart) {
  std::vector<float> logits;
  for (float l = 20; logits.size() < 600; l = std::nextafter(l, 0.0F)) logits.push_back(l);
  std::reverse(logits.begin(), logits.end());
  logits.insert(logits.end(), 8, 20.0F);
  for (int i = 0; i < 624; ++i) {
    const double temperature = 1e-12 * std::pow(1.03, i);
    for (const double top_p : {1.0, 0.9}) {
      for (const std::int64_t top_k : {0, 500}) {
        const SamplingParams p{.temperature = temperature, .top_p = top_p, .top_k = top_k};
        ASSERT_EQ(sample_finite(logits, p, 3), by_sorting(logits, p, 3))
            << "temperature " << temperature << ", top-p " << top_p << ", top-k " << top_k;
      }
    }
  }
}

TEST(Logprobs, LargeVocabulariesAgainstSortingThemWhole) {
  std::mt19937 random(12);
  std::vector<float> logits(30000);
  for (float& l : logits) l = static_cast<float>(random() % 200) / 8 - 10;
  std::vector<std::int32_t> ids(logits.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) { return logit(a) > logit(b); });
  double total = 0;
  for (const float l : logits) total += std::exp(static_cast<double>(l));
  for (const std::int64_t rank : {1, 2, 150, 20000, 30000}) {
    const std::int32_t id = ids[static_cast<std::size_t>(rank - 1)];
    const Logprobs got = token_logprobs(logits, id, 20);
    EXPECT_EQ(got.rank, rank);
    EXPECT_NEAR(got.chosen.logprob, logit(id) - std::log(total), 1e-4);
    ASSERT_EQ(got.top.size(), 20U);
    for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(got.top[i].id, ids[i]);
  }
}

TEST(Sample, NothingLeftGivesTheFirst) {
  const std::vector<float> logits(5, -std::numeric_limits<float>::infinity());
  for (const double top_p : {1.0, 0.9}) {
    for (const std::int64_t top_k : {0, 2}) {
      const SamplingParams p{.temperature = 1, .top_p = top_p, .top_k = top_k, .min_p = 0.1};
      EXPECT_EQ(sample_finite(logits, p, 0), 0);
    }
  }
}

TEST(Logprobs, LogitsWithoutRoomBetweenThem) {
  const std::vector<float> logits{1e10F, std::nextafter(1e10F, 0.0F)};
  const Logprobs got = token_logprobs(logits, 0, 2);
  EXPECT_EQ(got.chosen.logprob, 0);
  ASSERT_EQ(got.top.size(), 2U);
  EXPECT_EQ(got.top[1].logprob, -1024);
}

TEST(Greedy, LargeVocabulariesWithTies) {
  std::mt19937 random(13);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits(1 + random() % 2000);
    for (float& l : logits) l = static_cast<float>(random() % 5) - 4;
    for (std::size_t i = 0; i < logits.size(); i += 2)
      if (logits[i] == 0) logits[i] = -0.0F;
    EXPECT_EQ(greedy_token(logits),
              std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
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

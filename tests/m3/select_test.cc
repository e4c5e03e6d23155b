#include "m3/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace monolayer::m3 {
namespace {

// The definition, one block at a time: take forced blocks, then repeatedly the best that is left.
std::vector<std::int32_t> by_definition(const SelectionRule& rule, std::vector<float> scores) {
  const auto blocks = static_cast<std::int32_t>(scores.size());
  for (float& score : scores) score = std::isnan(score) ? -1e30F : score;
  std::set<std::int32_t> chosen;
  const auto room = [&] { return static_cast<std::int64_t>(chosen.size()) < rule.topk_blocks; };
  for (std::int32_t b = blocks - 1; b >= 0 && b >= blocks - rule.local_blocks && room(); --b)
    chosen.insert(b);
  for (std::int32_t b = 0; b < blocks && b < rule.init_blocks && room(); ++b) chosen.insert(b);
  while (room() && static_cast<std::int32_t>(chosen.size()) < blocks) {
    std::int32_t best = -1;
    for (std::int32_t b = 0; b < blocks; ++b) {
      if (chosen.count(b) == 0 && (best < 0 || scores[b] > scores[best])) best = b;
    }
    chosen.insert(best);
  }
  return {chosen.begin(), chosen.end()};
}

TEST(Select, EqualsTheDefinitionOnRandomScoresWithTiesAndNaN) {
  std::mt19937 random(1);
  std::vector<std::int32_t> ids;
  for (int round = 0; round < 20000; ++round) {
    const SelectionRule rule{static_cast<std::int64_t>(1 + random() % 6),
                             static_cast<std::int64_t>(random() % 3),
                             static_cast<std::int64_t>(random() % 3)};
    std::vector<float> scores(1 + random() % 12);
    for (float& score : scores) {
      const auto kind = random() % 20;
      score = kind == 0   ? std::numeric_limits<float>::quiet_NaN()
              : kind == 1 ? -std::numeric_limits<float>::infinity()
                          : static_cast<float>(static_cast<int>(random() % 7) - 3);
    }
    select_blocks(rule, scores, ids);
    ASSERT_EQ(ids, by_definition(rule, scores)) << "round " << round;
  }
}

TEST(Select, ReleasedRuleAt17BlocksOmitsExactlyOneEarlierBlock) {
  std::vector<float> scores(17, 0.0F);
  scores[5] = -1.0F;
  scores[16] = -100.0F;  // the row's own block is forced whatever it scores
  std::vector<std::int32_t> ids;
  select_blocks({16, 0, 1}, scores, ids);
  EXPECT_EQ(ids.size(), 16U);
  EXPECT_EQ(ids.back(), 16);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 5), 0);
}

TEST(Select, LowerIdWinsTies) {
  std::vector<std::int32_t> ids;
  select_blocks({3, 0, 1}, std::vector<float>{2, 2, 2, 2, 0}, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, 4}));
}

TEST(Select, AllBlocksWhenTheyFit) {
  std::vector<std::int32_t> ids;
  select_blocks({16, 0, 1}, std::vector<float>(7, 1.0F), ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace monolayer::m3

#include "m3/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace monolayer::m3 {
namespace {

TEST(Rope, FrequenciesOfTheReleasedModel) {
  const Rope rope(5000000, 64);
  ASSERT_EQ(rope.pairs(), 32);
  // theta^(-i/32) for the released theta, computed apart from this code.
  const std::pair<int, double> expected[] = {{0, 1.0},         {1, 0.6175288},    {2, 0.3813418},
                                             {8, 0.02114743},  {16, 4.472136e-4}, {24, 9.457416e-6},
                                             {31, 3.238716e-7}};
  for (const auto& [i, value] : expected) {
    EXPECT_NEAR(rope.frequencies()[static_cast<std::size_t>(i)] / value, 1.0, 2e-7) << i;
  }
}

TEST(Rope, RotatesPairsHalfAPartAndKeepsTheRest) {
  const Rope rope(10000, 8);
  float cosines[4], sines[4];
  rope.angles(1000, cosines, sines);
  float head[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  rotate(head, cosines, sines, rope.pairs());
  for (int i = 0; i < 4; ++i) {
    const double angle =
        static_cast<double>(1000.0F * rope.frequencies()[static_cast<std::size_t>(i)]);
    const double x = 1 + i, y = 5 + i;
    EXPECT_NEAR(head[i], x * std::cos(angle) - y * std::sin(angle), 1e-5);
    EXPECT_NEAR(head[i + 4], y * std::cos(angle) + x * std::sin(angle), 1e-5);
  }
  EXPECT_EQ(head[8], 9);
  EXPECT_EQ(head[11], 12);
}

TEST(Rope, ScoresDependOnTheDistanceOnly) {
  const Rope rope(5000000, 64);
  std::vector<float> cosines(32), sines(32);
  const auto at = [&](float value, std::int64_t position) {
    std::vector<float> head(64);
    for (std::size_t i = 0; i < head.size(); ++i) head[i] = value + 0.01F * static_cast<float>(i);
    rope.angles(position, cosines.data(), sines.data());
    rotate(head.data(), cosines.data(), sines.data(), 32);
    return head;
  };
  const auto score = [&](std::int64_t q, std::int64_t k) {
    const auto a = at(0.3F, q), b = at(-0.7F, k);
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
  };
  EXPECT_NEAR(score(10, 3), score(110, 103), 1e-4 * std::fabs(score(10, 3)));
}

}  // namespace
}  // namespace monolayer::m3

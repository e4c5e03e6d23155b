// The draft that comes with the embedded model: what it is good for.
#include <string>

#include <gtest/gtest.h>

#include "engine/nano_speculation.h"

namespace monolayer::engine {
namespace {

TEST(TrainedDraft, AcceptanceAtThreeGuessesIsAtLeast2Point2AndTokensStay) {
  const auto model = open_model(kAssets + "nano");
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  SpeculationBenchOptions options = nano_speculation();
  const auto results = bench_speculation(**model, options);
  ASSERT_TRUE(results.ok()) << results.status().to_string();
  // Equal answers are checked by the bench itself.
  const auto& plain = (*results)[0];
  const auto& three = (*results)[2];
  EXPECT_DOUBLE_EQ(plain.tokens_per_step, 1);
  EXPECT_GE((*results)[1].tokens_per_step, 1.6);
  EXPECT_GE(three.tokens_per_step, 2.2);
  EXPECT_GE((*results)[3].tokens_per_step, three.tokens_per_step);
  for (std::size_t i = 1; i < 3; ++i) EXPECT_LE(three.accepted_at[i], three.accepted_at[i - 1]);
  EXPECT_LT(three.bytes_per_token, plain.bytes_per_token);
}

}  // namespace
}  // namespace monolayer::engine

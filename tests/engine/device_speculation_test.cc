// Speculation with target and draft on a device: the tokens of a run without, whatever the path.
#include <string>

#include <gtest/gtest.h>

#include "engine/nano_speculation.h"

namespace monolayer::engine {
namespace {

struct Case {
  const char *name, *path, *caches;
  int ranks;
};

class DeviceSpeculation : public testing::TestWithParam<Case> {};

TEST_P(DeviceSpeculation, TokensAreThoseWithoutAndTheDraftIsAsGood) {
  const auto model = open_model(kAssets + "nano");
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  SpeculationBenchOptions options = nano_speculation();
  options.backend = "cuda";
  options.path = GetParam().path;
  options.cache_types.kv = GetParam().caches;
  options.ranks = GetParam().ranks;
  const auto results = bench_speculation(**model, options);
  if (!results.ok() && results.status().to_string().find("no device") != std::string::npos)
    GTEST_SKIP() << "no CUDA device";
  ASSERT_TRUE(results.ok()) << results.status().to_string();
  // Equal answers are checked by the bench itself.
  EXPECT_DOUBLE_EQ((*results)[0].tokens_per_step, 1);
  EXPECT_GE((*results)[1].tokens_per_step, 1.6);
  EXPECT_GE((*results)[2].tokens_per_step, 2.2);
  EXPECT_GE((*results)[3].tokens_per_step, (*results)[2].tokens_per_step);
  for (const SpeculationBenchResult& r : *results)
    std::printf("%s: %lld guesses, %.1f tokens/s, %.3f tokens a step\n", GetParam().name,
                static_cast<long long>(r.guesses), r.tokens_per_second, r.tokens_per_step);
}

INSTANTIATE_TEST_SUITE_P(Paths, DeviceSpeculation,
                         testing::Values(Case{"native", "native", "bf16", 1},
                                         Case{"mono", "mono", "bf16", 1},
                                         Case{"mono_fp8", "mono", "fp8", 1},
                                         Case{"mono_four_ranks", "mono", "bf16", 4}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace monolayer::engine

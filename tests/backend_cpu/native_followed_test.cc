// The native chain against the reference cases on the reference's own choices. A near tie among
// experts or blocks decided otherwise changes its row by a tenth or a half, and every later row
// through the caches; with the choices alike, what is left is rounding, and all rows together are
// held to the bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "backend_cpu/choice_follower.h"
#include "backend_cpu/choice_tally.h"
#include "backend_cpu/native_harness.h"
#include "m3/reference.h"
#include "oracle_case.h"

namespace monolayer::test {
namespace {

// Single rows scatter around the bound for all of them. `row` is stated per case: float32
// arithmetic with the roundings of docs/numerics.md and nothing else leaves up to 2.2e-2 in a row
// of the first four cases, 3.1e-2 in local2, 5.8e-2 in mxfp8 and 2.4e-2 in mixed.
struct Case {
  const char* name;
  bool fp8;
  double row;
};

class NativeFollowed : public testing::TestWithParam<Case> {};

TEST_P(NativeFollowed, EveryRowWithinTheBound) {
  const auto& [name, fp8, row_bound] = GetParam();
  const Bounds& bounds = fp8 ? kFp8Bounds : kBf16Bounds;
  auto loaded = OracleCase::load(name);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const OracleCase& oracle = *loaded;
  const m3::ModelConfig& c = oracle.config;
  const auto tokens = static_cast<std::int64_t>(oracle.input_ids.size());
  m3::Reference reference(c, oracle.weights);
  Recorder expected;
  const auto want = reference.forward(oracle.input_ids, tokens, &expected);
  ASSERT_TRUE(want.ok()) << want.status().to_string();
  const std::vector<float> stored = oracle.floats("logits");

  const std::vector<std::vector<std::int64_t>> chunkings = {
      {512}, {1}, {100, 1, 1, 29, 128, 7, 200, 1, 64}};
  for (const auto& chunks : chunkings) {
    SCOPED_TRACE("chunks of " + std::to_string(chunks.front()));
    Follower follower(c, oracle.weights, expected, bounds.gap);
    EngineOptions options;
    options.threads = 2;
    options.choices = &follower;
    if (fp8) options.cache = {.kv = DType::kE4M3, .index = DType::kE4M3, .k_scale = 0.03125F};
    Engine engine(c, oracle.weights, options);
    const Output out = run(engine, oracle.input_ids, page_table(tokens), chunks);
    ASSERT_EQ(out.logits.size(), want->size());

    const auto width = static_cast<std::size_t>(c.vocab_size);
    double worst = 0;
    std::int64_t worst_row = 0, above = 0;
    for (std::int64_t row = 0; row < tokens; ++row) {
      const std::size_t at = static_cast<std::size_t>(row) * width;
      const double error = relative_l2(std::span(out.logits).subspan(at, width),
                                       std::span<const float>(*want).subspan(at, width));
      EXPECT_LE(error, row_bound) << "row " << row;
      above += error > bounds.logits ? 1 : 0;
      if (!(error <= worst)) {
        worst = error;
        worst_row = row;
      }
    }
    std::vector<float> kept;
    for (const std::int32_t row : oracle.rows) {
      const auto begin = out.logits.begin() + row * c.vocab_size;
      kept.insert(kept.end(), begin, begin + c.vocab_size);
    }
    const double error = relative_l2(kept, stored);
    const double all = relative_l2(out.logits, *want);
    EXPECT_LE(error, bounds.logits);
    EXPECT_LE(all, bounds.logits);
    EXPECT_LE(follower.blocks_tally.largest_gap, bounds.gap);
    EXPECT_LE(follower.experts_tally.largest_gap, bounds.gap);
    EXPECT_LE(follower.blocks_tally.share(), bounds.followed);
    EXPECT_LE(follower.experts_tally.share(), bounds.experts);
    if (chunks.front() != 512) continue;
    std::printf(
        "%s, %s caches: logits %.4f over the stored rows, %.4f over all %ld, worst row %.4f (%ld), "
        "%ld above %.3g; blocks %s (%ld had a choice); experts %s\n",
        name, fp8 ? "FP8" : "BF16", error, all, static_cast<long>(tokens), worst,
        static_cast<long>(worst_row), static_cast<long>(above), bounds.logits,
        follower.blocks_tally.text().c_str(), static_cast<long>(follower.with_choice),
        follower.experts_tally.text().c_str());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, NativeFollowed,
                         testing::Values(Case{"tiny", false, 2.5e-2},
                                         Case{"m3shape", false, 2.5e-2},
                                         Case{"onekv", false, 2.5e-2}, Case{"mxfp4", false, 2.5e-2},
                                         Case{"local2", false, 3.5e-2}, Case{"mxfp8", false, 7e-2},
                                         Case{"mixed", false, 3.5e-2}, Case{"tiny", true, 8e-2},
                                         Case{"m3shape", true, 8e-2}, Case{"onekv", true, 8e-2},
                                         Case{"mxfp4", true, 8e-2}),
                         [](const auto& test) {
                           return test.param.name + std::string(test.param.fp8 ? "Fp8" : "Bf16");
                         });

}  // namespace
}  // namespace monolayer::test

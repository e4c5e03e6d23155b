// The CUDA chain on a device: against the reference cases, against the CPU's greedy text, and
// against itself, bit for bit: any chunking, graphs or plain launches, native or fused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <tuple>

#include "backend_cuda/device_harness.h"
#include "m3/reference.h"
#include "oracle_case.h"

namespace monolayer::test {
namespace {

class CudaOracle : public testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  void SetUp() override {
    if (no_device()) GTEST_SKIP() << "no CUDA device";
    auto loaded = OracleCase::load(std::get<0>(GetParam()));
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    oracle_ = std::make_unique<OracleCase>(std::move(loaded).value());
    if (fp8()) cache_ = {.kv = DType::kE4M3, .index = DType::kE4M3, .k_scale = 0.03125F};
  }
  bool fp8() const { return std::get<1>(GetParam()); }
  std::unique_ptr<OracleCase> oracle_;
  cpu::CacheOptions cache_;
};

// The bounds of the CPU's native chain: on rows whose own choices are the reference's.
TEST_P(CudaOracle, Logits) {
  const std::string name = std::get<0>(GetParam());
  if (fp8() && (name == "mxfp8" || name == "mixed"))
    GTEST_SKIP() << "E4M3 caches alone are farther off there, on the CPU too (docs/testing.md)";
  const m3::ModelConfig& c = oracle_->config;
  Device device(c, oracle_->weights, cache_, {});
  const DeviceOutput out = device.run(oracle_->input_ids, {512}, true);
  m3::Reference reference(c, oracle_->weights);
  Recorder expected;
  ASSERT_TRUE(reference.forward(oracle_->input_ids, 1, &expected).ok());
  EngineOptions options;
  options.cache = cache_;
  options.threads = 2;
  Engine engine(c, oracle_->weights, options);
  const Output cpu = run(engine, oracle_->input_ids,
                         page_table(static_cast<std::int64_t>(oracle_->input_ids.size())), {512});

  const auto others = [&](const Recorder& a, const Recorder& b, std::int64_t& differ) {
    std::set<std::int64_t> rows;
    differ = 0;
    for (const auto& [key, ids] : a.selections)
      if (b.selections.at(key) != ids) rows.insert(std::get<1>(key)), ++differ;
    for (const auto& [key, ids] : a.chosen_experts)
      if (b.chosen_experts.at(key) != ids) rows.insert(std::get<1>(key)), ++differ;
    return rows;
  };
  std::int64_t differ_reference = 0;
  std::int64_t differ_cpu = 0;
  const auto other = others(expected, out.trace, differ_reference);
  const auto other_cpu = others(cpu.trace, out.trace, differ_cpu);
  const std::vector<float> logits = oracle_->floats("logits");
  std::vector<float> kept, kept_want, against_cpu, cpu_want;
  for (std::size_t i = 0; i < oracle_->rows.size(); ++i) {
    const std::int64_t row = oracle_->rows[i];
    const auto got = out.logits.begin() + row * c.vocab_size;
    if (other.count(row) == 0) {
      kept.insert(kept.end(), got, got + c.vocab_size);
      const auto want = logits.begin() + static_cast<std::ptrdiff_t>(i) * c.vocab_size;
      kept_want.insert(kept_want.end(), want, want + c.vocab_size);
    }
    if (other_cpu.count(row) == 0) {
      against_cpu.insert(against_cpu.end(), got, got + c.vocab_size);
      const auto want = cpu.logits.begin() + row * c.vocab_size;
      cpu_want.insert(cpu_want.end(), want, want + c.vocab_size);
    }
  }
  const double error = relative_l2(kept, kept_want);
  std::printf(
      "%s, %s caches: logits %.4f on %zu of %zu rows (%ld choices differ from the "
      "reference); against the CPU %.4f on %zu rows (%ld choices differ)\n",
      std::get<0>(GetParam()), fp8() ? "FP8" : "BF16", error,
      kept.size() / static_cast<std::size_t>(c.vocab_size), oracle_->rows.size(),
      static_cast<long>(differ_reference), relative_l2(against_cpu, cpu_want),
      against_cpu.size() / static_cast<std::size_t>(c.vocab_size), static_cast<long>(differ_cpu));
  EXPECT_LE(error, fp8() ? 6e-2 : 1.5e-2);
  EXPECT_GE(2 * kept.size(), oracle_->rows.size() * static_cast<std::size_t>(c.vocab_size));
}

TEST_P(CudaOracle, SameBits) {
  const m3::ModelConfig& c = oracle_->config;
  std::vector<std::int32_t> tokens = oracle_->input_ids;
  tokens.resize(std::min<std::size_t>(tokens.size(), 320));
  Device native(c, oracle_->weights, cache_, {});
  const DeviceOutput whole = native.run(tokens, {512}, false);
  const auto same = [&](const std::vector<float>& logits, const char* what) {
    ASSERT_EQ(logits.size(), whole.logits.size()) << what;
    std::size_t differ = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) differ += logits[i] != whole.logits[i] ? 1 : 0;
    EXPECT_EQ(differ, 0U) << what << ": of " << logits.size();
  };
  same(native.run(tokens, {1}, false).logits, "row by row");
  same(native.run(tokens, {13, 1, 2, 16, 7, 5}, false).logits, "ragged");
  same(native.run(tokens, {512}, true).logits, "traced");
  Device plain(c, oracle_->weights, cache_, {.graphs = false});
  same(plain.run(tokens, {100}, false).logits, "without graphs");
  Device mono(c, oracle_->weights, cache_, {.path = cuda::Path::kMono});
  same(mono.run(tokens, {512}, false).logits, "fused");
  same(mono.run(tokens, {1}, false).logits, "fused, row by row");
  same(mono.run(tokens, {13, 1, 2, 16, 7, 5}, false).logits, "fused, ragged");
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaOracle,
                         testing::Combine(testing::Values("tiny", "m3shape", "onekv", "mxfp4",
                                                          "mxfp8", "mixed"),
                                          testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) ? "Fp8" : "Bf16");
                         });

// Greedy text of the embedded model: both engines are given the CPU's tokens. Sums are in another
// order than on the CPU, so a token may differ where the CPU's best two are closer than kNearTie
// (logits of this model are of the order of 10), and only there.
class CudaNano : public testing::TestWithParam<bool> {};

// Whether the last row that both saw took the same experts; it must have taken the same blocks.
// Experts that differ must have been close: `gap` takes the largest difference of the scores they
// had in `a`.
bool same_choices(const Recorder& a, const Recorder& b, double& gap) {
  if (a.chosen_experts.empty()) return true;
  std::int64_t last = 0;
  for (const auto& [key, ids] : a.chosen_experts) last = std::max(last, std::get<1>(key));
  bool same = true;
  for (const auto& [key, ids] : a.selections) {
    if (std::get<1>(key) != last) continue;
    EXPECT_EQ(b.selections.at(key), ids) << "blocks";
  }
  for (const auto& [key, ids] : a.chosen_experts) {
    const std::vector<std::int32_t>& other = b.chosen_experts.at(key);
    if (std::get<1>(key) != last || other == ids) continue;
    same = false;
    const std::vector<float>& scores = a.expert_scores.at(key);
    float least = 1e30F;
    float taken = 1e30F;
    for (const std::int32_t id : ids) least = std::min(least, scores[static_cast<std::size_t>(id)]);
    for (const std::int32_t id : other)
      taken = std::min(taken, scores[static_cast<std::size_t>(id)]);
    gap = std::max(gap, static_cast<double>(least - taken));
  }
  return same;
}

TEST_P(CudaNano, GreedyTokensOfTheCpu) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  constexpr float kNearTie = 0.02F;
  auto loaded = OracleCase::load("nano");
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  OracleCase& nano = *loaded;
  EngineOptions options;
  options.threads = 2;
  Engine engine(nano.config, nano.weights, options);
  Device device(nano.config, nano.weights, {},
                {.path = GetParam() ? cuda::Path::kMono : cuda::Path::kNative});
  const auto prompt_length = static_cast<std::ptrdiff_t>(nano.input_ids.size() / 2);
  const auto pages = page_table(64 * 128);
  std::vector<std::int32_t> next(nano.input_ids.begin(), nano.input_ids.begin() + prompt_length);
  std::int64_t at = 0;
  int near = 0;
  int other = 0;
  int elsewhere = 0;
  double worst = 0;
  double gap_of_choices = 0;
  for (int i = 0; i < 96; ++i) {
    cpu::StepSequence sequence{.tokens = next, .start = at, .pages = pages, .logit_rows = 1};
    std::vector<float> want;
    std::vector<float> got;
    std::vector<float> traced;
    Recorder cpu_choices;
    Recorder choices;
    const Status on_cpu = engine.native->step({&sequence, 1}, *engine.pool, want, &cpu_choices);
    ASSERT_TRUE(on_cpu.ok()) << on_cpu.to_string();
    const Status on_device = device.native().step({&sequence, 1}, device.pool(), got, nullptr);
    ASSERT_TRUE(on_device.ok()) << on_device.to_string();
    ASSERT_TRUE(device.native().step({&sequence, 1}, device.pool(), traced, &choices).ok());
    EXPECT_EQ(got, traced) << "token " << i;
    if (same_choices(cpu_choices, choices, gap_of_choices)) {
      worst = std::max(worst, relative_l2(got, want));
    } else {
      ++elsewhere;
    }
    const auto best = std::max_element(want.begin(), want.end());
    const auto token = static_cast<std::int32_t>(best - want.begin());
    const auto chosen = std::max_element(got.begin(), got.end()) - got.begin();
    const float largest = *best;
    *best = -1e30F;
    const float gap = largest - *std::max_element(want.begin(), want.end());
    near += gap < kNearTie ? 1 : 0;
    other += chosen != token ? 1 : 0;
    if (gap >= kNearTie) {
      EXPECT_EQ(chosen, token) << "token " << i << ", best two " << gap;
    }
    at += static_cast<std::int64_t>(next.size());
    next.assign(1, token);
  }
  std::printf(
      "nano, 96 tokens: %d near ties, %d decided otherwise; %d with other choices, whose scores "
      "differ by %.5f at most; logits of the others within %.4f\n",
      near, other, elsewhere, gap_of_choices, worst);
  EXPECT_LE(worst, 1.5e-2);
  EXPECT_LE(elsewhere, 4);
  EXPECT_LE(gap_of_choices, 0.01);
  EXPECT_LE(near, 12);  // or the margin says nothing
}
INSTANTIATE_TEST_SUITE_P(Paths, CudaNano, testing::Bool());

// A block that never arrives ends the step with a record, and the next engine works.
// The experts' rows are staged whether or not a shared expert came before them.
TEST(CudaModel, WithoutASharedExpert) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  for (const WeightFormat format : {WeightFormat::kPlain, WeightFormat::kMXFP4}) {
    m3::ModelConfig config = nano_config();
    config.hidden_size = 512;
    config.shared_width = 0;
    const RandomModel model(config, {.experts = format}, 11);
    const std::vector<std::int32_t> tokens = random_tokens(config, 40, 3);
    Device native(config, model.weights, {}, {});
    const std::vector<float> want = native.run(tokens, {1}, false).logits;
    Engine engine(config, model.weights, {});
    const Output cpu = run(engine, tokens, page_table(40), {40});
    ASSERT_EQ(cpu.logits.size(), want.size());
    // Each row whose choices agree is within a few thousandths; a wrong row is not near.
    EXPECT_LT(relative_l2(want, cpu.logits), 0.2);
    for (const cuda::Path path : {cuda::Path::kNative, cuda::Path::kMono}) {
      Device device(config, model.weights, {}, {.path = path});
      for (const std::int64_t chunk : {1, 2, 5, 8, 9, 40})
        EXPECT_EQ(want, device.run(tokens, {chunk}, false).logits)
            << chunk << " rows, " << (path == cuda::Path::kMono ? "fused" : "native");
    }
  }
}

TEST(CudaFused, StalledBlockIsReported) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  auto loaded = OracleCase::load("nano");
  ASSERT_TRUE(loaded.ok());
  OracleCase& nano = *loaded;
  for (const int stalled : {3, -1}) {
    Device device(nano.config, nano.weights, {},
                  {.path = cuda::Path::kMono, .deadline_ns = 50'000'000, .stall_block = stalled});
    const auto pages = page_table(128);
    const std::vector<std::int32_t> tokens(nano.input_ids.begin(), nano.input_ids.begin() + 5);
    cpu::StepSequence sequence{.tokens = tokens, .start = 0, .pages = pages, .logit_rows = 1};
    std::vector<float> logits;
    const Status status = device.native().step({&sequence, 1}, device.pool(), logits, nullptr);
    std::printf("stalled block %d: %s\n", stalled, status.to_string().c_str());
    EXPECT_EQ(status.ok(), stalled < 0);
  }
}

}  // namespace
}  // namespace monolayer::test

// The tables as the chains of `generate` and `serve` ask them.
#include "dispatch/chain_policy.h"
#include "dispatch/counted_paths.h"

#include <gtest/gtest.h>

#include "backend/cpu/cache.h"
#include "backend/cpu/ranked.h"
#include "backend_cpu/random_model.h"
#include "mono/library_fixture.h"
#include "mono/lifecycle.h"

namespace monolayer::dispatch {
namespace {

using test::RandomModel;

std::int64_t count_of(const StepCounters& counters, std::string_view reason) {
  for (const auto& [name, count] : counters.reasons)
    if (name == reason) return count;
  return -1;
}

class ChainPolicyTest : public ::testing::Test {
 protected:
  std::unique_ptr<ChainPolicy> make(const std::string& path) {
    auto made = ChainPolicy::create(model_.config, model_.weights, {}, path);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  // Runs one step of four rows by the policy, which must send it native; how often for `reason`.
  std::int64_t native_steps_of(ChainPolicy& policy, std::string_view reason) {
    auto team = cpu::ThreadTeam::create({.threads = 1});
    auto pool = cpu::CachePool::create(model_.config, {}, 1);
    cpu::NativeOptions options;
    options.fused = true;
    options.policy = &policy;
    auto native = cpu::Native::create(model_.config, model_.weights, **team, options);
    EXPECT_TRUE(native.ok()) << native.status().to_string();
    const std::vector<std::int32_t> tokens{1, 2, 3, 4}, pages{0};
    cpu::StepSequence sequence;
    sequence.tokens = tokens;
    sequence.pages = pages;
    std::vector<float> logits;
    const Status status = (*native)->step({&sequence, 1}, **pool, logits, nullptr);
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(1, (*native)->paths().native);
    EXPECT_EQ(policy.deployment_reason(), (*native)->paths().why_native);
    return count_of(policy.counters(), reason);
  }

  RandomModel model_{test::nano_config(), {}, 11};
};

TEST_F(ChainPolicyTest, StepsOfTwoRanksAreCountedOnceAndByTheirRule) {
  const auto policy = make("auto");
  ASSERT_TRUE(policy->any_fused());
  EXPECT_EQ("", policy->deployment_reason());
  cpu::RankedOptions two;
  two.ranks = two.threads = 2;
  two.pages = 4;
  cpu::NativeOptions options;
  options.fused = true;
  options.policy = policy.get();
  auto native = cpu::make_ranked(model_.config, model_.weights, two, options);
  ASSERT_TRUE(native.ok()) << native.status().to_string();
  auto pool = cpu::CachePool::create(model_.config, {}, 4);
  ASSERT_TRUE(pool.ok());
  const std::vector<std::int32_t> pages{3, 1, 0, 2};
  const std::vector<std::int32_t> tokens = test::random_tokens(model_.config, 200, 3);
  std::vector<float> logits;
  std::int64_t at = 0;
  for (const std::int64_t rows : {17, 9, 8, 1, 1, 40}) {
    cpu::StepSequence sequence;
    sequence.tokens =
        std::span(tokens).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(rows));
    sequence.start = at;
    sequence.pages = pages;
    const Status status = (*native)->step({&sequence, 1}, **pool, logits, nullptr);
    ASSERT_TRUE(status.ok()) << status.to_string();
    at += rows;
  }
  const StepCounters counters = policy->counters();
  EXPECT_EQ(3, counters.mono);
  EXPECT_EQ(3, counters.native);
  EXPECT_EQ(2, count_of(counters, "rows"));
  EXPECT_EQ(1, count_of(counters, "query_length"));
  EXPECT_EQ(3, (*native)->paths().mono);
  EXPECT_EQ("rows: is 40, needs 1 to 16", (*native)->paths().why_native);
}

// What an engine does before its first request is no step.
TEST_F(ChainPolicyTest, APreparedStepIsNotCounted) {
  const auto policy = make("auto");
  auto team = cpu::ThreadTeam::create({.threads = 1});
  auto pool = cpu::CachePool::create(model_.config, {}, 4);
  cpu::NativeOptions options;
  options.fused = true;
  options.policy = policy.get();
  auto native = cpu::Native::create(model_.config, model_.weights, **team, options);
  ASSERT_TRUE(native.ok()) << native.status().to_string();
  const std::vector<std::int32_t> tokens{1, 2, 3, 4}, pages{0};
  cpu::StepSequence sequence;
  sequence.tokens = tokens;
  sequence.pages = pages;
  const Status prepared = (*native)->prepare_for({&sequence, 1}, **pool);
  ASSERT_TRUE(prepared.ok()) << prepared.to_string();
  EXPECT_EQ(0, policy->counters().mono);
  EXPECT_EQ(0, policy->counters().native);
  std::vector<float> logits;
  ASSERT_TRUE((*native)->step({&sequence, 1}, **pool, logits, nullptr).ok());
  EXPECT_EQ(1, policy->counters().mono);
  EXPECT_EQ(1, (*native)->paths().mono);
}

TEST_F(ChainPolicyTest, ADeploymentThatIsRefusedFallsBackOrSaysWhy) {
  model_.config.layers[4].moe = false;  // sparse attention with a dense MLP
  const auto policy = make("auto");
  EXPECT_FALSE(policy->any_fused());
  EXPECT_NE(policy->deployment_reason().find("layer_mix: is layer 4 with sparse attention"),
            std::string::npos)
      << policy->deployment_reason();
  EXPECT_EQ(1, native_steps_of(*policy, kReasonDeployment));
  const auto refused = ChainPolicy::create(model_.config, model_.weights, {}, "mono");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(Code::kUnsupported, refused.status().code());
  EXPECT_NE(refused.status().to_string().find("layer_mix"), std::string::npos);
}

TEST_F(ChainPolicyTest, TheOperatorsChoice) {
  EXPECT_FALSE(make("native")->any_fused());
  const auto native = make("native");
  EXPECT_EQ(1, native_steps_of(*native, kReasonChosen));
  EXPECT_EQ("native was chosen", make("native")->deployment_reason());
  EXPECT_TRUE(make("mono")->any_fused());
  EXPECT_EQ("--path: 'fast' is not one of auto, native, mono",
            ChainPolicy::create(model_.config, model_.weights, {}, "fast").status().to_string());
}

// What a chain cannot hold is refused for its shape, whoever asks.
TEST_F(ChainPolicyTest, EveryRuleOfAStepIsAsked) {
  const auto policy = make("auto");
  cpu::StepShape good;
  good.rows = 4;
  good.requests = 2;
  good.shortest_query = 1;
  good.longest_query = 3;
  good.longest_context = 300;
  good.max_context = 512;
  good.table_width = 3;
  good.highest_slot = 511;
  CountedPaths paths;
  mono::test::FakeLog log;
  mono::test::FakeBackend backend(log);
  const mono::test::Deployment deployment;
  mono::Lifecycle life(deployment.input, backend, nullptr, {});
  for (const ml_cache_spec& cache : deployment.input.caches) {
    ASSERT_TRUE(life.bind_main(cache).ok());
    ASSERT_TRUE(life.bind_index(cache.layer_id, cache.index, 1).ok());
  }
  const auto zero = policy->driver(life, {}, 0);
  const auto one = policy->driver(life, {}, 1);
  ASSERT_TRUE(zero->step(good, 1, paths).ok());
  EXPECT_EQ(1, paths.mono);
  EXPECT_EQ("", zero->reason());
  const auto reason = [&](auto change) {
    cpu::StepShape shape = good;
    change(shape);
    const int before = paths.native;
    EXPECT_TRUE(one->step(shape, 1, paths).ok());
    EXPECT_EQ(before + 1, paths.native);
    return one->reason();
  };
  EXPECT_EQ("rows: is 17, needs 1 to 16", reason([](auto& s) { s.rows = 17; }));
  EXPECT_EQ("query_length: is 1 to 9, needs 1 to 8", reason([](auto& s) { s.longest_query = 9; }));
  EXPECT_EQ("context: is 513 of 512, needs at most the caches' max_context",
            reason([](auto& s) { s.longest_context = 513; }));
  EXPECT_NE(reason([](auto& s) { s.table_width = 8193; }).find("table_width"), std::string::npos);
  EXPECT_NE(reason([](auto& s) { s.highest_slot = std::int64_t{1} << 31; }).find("slots"),
            std::string::npos);
  EXPECT_EQ(1, policy->counters().mono + policy->counters().native);  // rank 1 counts nothing
  EXPECT_EQ(1, paths.mono);
}

// Limits that were measured send steps native where fused is slower, unless fused was asked for.
TEST_F(ChainPolicyTest, MeasuredLimitsDecideWhereBothCouldRun) {
  const std::vector<cpu::FusedSpan> spans{{1, 1000}, {8, 400}};
  const auto with = [&](const char* path) {
    auto policy =
        ChainPolicy::create(model_.config, model_.weights, {.backend = "cuda"}, path, spans);
    EXPECT_TRUE(policy.ok()) << policy.status().to_string();
    return std::move(policy).value();
  };
  const auto shape = [](std::int64_t rows, std::int64_t groups) {
    cpu::StepShape s;
    s.rows = s.requests = rows;
    s.shortest_query = s.longest_query = s.longest_context = s.table_width = 1;
    s.max_context = 512;
    s.key_groups = groups;
    return s;
  };
  const auto policy = with("auto");
  EXPECT_TRUE(policy->fused(shape(1, 1000), 0));
  EXPECT_FALSE(policy->fused(shape(1, 1001), 0));
  EXPECT_TRUE(policy->fused(shape(2, 400), 0));
  EXPECT_FALSE(policy->fused(shape(8, 401), 0));
  EXPECT_FALSE(policy->fused(shape(9, 9), 0));
  EXPECT_EQ(2, policy->counters().mono);
  EXPECT_EQ(3, count_of(policy->counters(), "measured"));
  EXPECT_EQ(
      "measured: is 9 groups of 16 tokens over 9 rows, fused is faster up to 0, needs a "
      "step that was measured to be faster fused",
      policy->reason(shape(9, 9)));
  EXPECT_NE(policy->steps_reason().find("up to 8 rows that see 6400 tokens in all"),
            std::string::npos)
      << policy->steps_reason();
  const auto said = [&](const std::vector<cpu::FusedSpan>& table) {
    return ChainPolicy::create(model_.config, model_.weights, {.backend = "cuda"}, "auto", table)
        .value()
        ->steps_reason();
  };
  EXPECT_EQ("native was measured to be faster for every step", said({{16, 0}}));
  EXPECT_EQ(
      "fused where it was measured to be faster: 2 to 8 rows that see 6400 tokens in all; other "
      "steps native, larger ones by their passes of 16 rows",
      said({{1, 0}, {8, 400}, {16, 0}}));
  const auto asked = with("mono");
  EXPECT_TRUE(asked->fused(shape(16, 100000), 0));
  EXPECT_FALSE(asked->fused(shape(17, 17), 0));
  EXPECT_EQ("steps run fused, larger ones in passes of 16 rows", asked->steps_reason());
}

}  // namespace
}  // namespace monolayer::dispatch

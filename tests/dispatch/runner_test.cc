// Steps through decision, lifecycle and paths.
#include <gtest/gtest.h>

#include "dispatch/counted_paths.h"
#include "dispatch/runner.h"
#include "mono/library_fixture.h"

namespace monolayer::dispatch {
namespace {

using mono::test::Deployment;
using mono::test::FakeBackend;
using mono::test::FakeLog;

DeploymentFacts supported() {
  DeploymentFacts facts;
  facts.sparse_moe_layers = configured(std::int64_t{3});
  return facts;
}

using Paths = CountedPaths;

struct Bench {
  FakeLog log;
  FakeBackend backend{log};
  Deployment deployment;
  mono::Lifecycle life{deployment.input, backend, nullptr, {}};
  Dispatcher dispatcher = std::move(Dispatcher::create(supported(), PathChoice::kAuto)).value();
  std::vector<ml_cache_spec> caches;
  StepRunner runner{dispatcher, life, [this] { return caches; }};
  Paths paths;

  void bind() {
    caches.clear();
    for (std::int64_t id = 3; id < 6; ++id) caches.push_back(deployment.cache(id));
    for (const ml_cache_spec& cache : caches) {
      ASSERT_TRUE(life.bind_main(cache).ok());
      ASSERT_TRUE(life.bind_index(cache.layer_id, cache.index, 1).ok());
    }
  }
  Status step(std::int64_t rows, std::int64_t generation = 0, bool capturing = false) {
    StepFacts facts;
    facts.rows = facts.query_rows = facts.requests = facts.index_requests = scheduled(rows);
    return runner.step(facts, Generation::from_scheduler(generation), scheduled(capturing), paths);
  }
};

TEST(StepRunner, NativeUntilBoundThenFused) {
  Bench b;
  ASSERT_TRUE(b.step(4).ok());
  EXPECT_EQ(b.paths.native, 1);
  EXPECT_NE(b.runner.reason().find("postponed"), std::string::npos);
  b.bind();
  ASSERT_TRUE(b.step(4).ok());
  EXPECT_EQ(b.paths.mono, 1);
  const StepCounters c = b.dispatcher.counters();
  EXPECT_EQ(c.mono, 1);
  EXPECT_EQ(c.native, 1);
  ASSERT_TRUE(b.life.close().ok());
}

// T-L8 at the dispatch: large steps are native, small ones fused again, nothing is rebuilt.
TEST(StepRunner, TL8LargeAndSmallStepsAlternate) {
  Bench b;
  b.bind();
  for (const std::int64_t rows : {17, 4, 32, 16, 20, 1}) ASSERT_TRUE(b.step(rows).ok());
  EXPECT_EQ(b.paths.native, 3);
  EXPECT_EQ(b.paths.mono, 3);
  EXPECT_EQ(b.log.constructions, 1);
  ASSERT_TRUE(b.life.close().ok());
}

// L15: a stale library is refused inside a capture and rebuilt outside.
TEST(StepRunner, StaleLibraryIsRebuiltOutsideCapture) {
  Bench b;
  b.bind();
  ASSERT_TRUE(b.step(4, 0).ok());
  std::vector<ml_cache_spec> fresh;
  for (std::int64_t id = 3; id < 6; ++id) fresh.push_back(b.deployment.cache(id));
  b.caches = fresh;
  ASSERT_TRUE(b.step(4, 1, true).ok());
  EXPECT_EQ(b.paths.native, 1);
  EXPECT_EQ(b.runner.reason(), "runner: is stale while capturing, needs ready");
  EXPECT_EQ(b.log.constructions, 1);
  ASSERT_TRUE(b.step(4, 1).ok());
  EXPECT_EQ(b.paths.mono, 2);
  EXPECT_EQ(b.log.constructions, 2);
  EXPECT_EQ(b.log.closes, 1);
  EXPECT_EQ(b.life.bound(4)->k.data, fresh[1].k.data);
  ASSERT_TRUE(b.step(4, 1, true).ok());
  EXPECT_EQ(b.paths.mono, 3) << "current libraries may be captured";
  ASSERT_TRUE(b.life.close().ok());
}

// L7 as the dispatch does it: first use inside a capture records native.
TEST(StepRunner, TL5FirstUseWhileCapturingGoesNative) {
  Bench b;
  b.bind();
  ASSERT_TRUE(b.step(4, 0, true).ok());
  EXPECT_EQ(b.paths.native, 1);
  EXPECT_EQ(b.runner.reason(), "runner: is not built while capturing, needs ready");
  EXPECT_EQ(b.log.constructions, 0);
}

TEST(StepRunner, DisabledForGoodAfterUnsupported) {
  Bench b;
  b.backend.support = Status(Code::kUnsupported, "layer 4", "odd");
  b.bind();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(b.step(4).ok());
  EXPECT_EQ(b.paths.native, 3);
  EXPECT_EQ(b.runner.reason(), "runner: is disabled, needs ready");
}

// L11: what fails inside the fused path is an error, never a native retry.
TEST(StepRunner, FusedFailureIsNotRetriedNatively) {
  struct Failing : Paths {
    Status run_mono(mono::Library&) override { return {Code::kInternal, "kernel", "injected"}; }
  };
  Bench b;
  b.bind();
  Failing paths;
  const Status status =
      b.runner.step(StepFacts{}, Generation::from_scheduler(0), scheduled(false), paths);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(paths.native, 0);
}

}  // namespace
}  // namespace monolayer::dispatch

// The lifecycle rules of the adapter, each test named after the rule's id.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <mutex>

#include "mono/library_fixture.h"
#include "mono/lifecycle.h"

namespace monolayer::mono {
namespace {

using test::Deployment;
using test::FakeBackend;
using test::FakeLog;
using test::on_ranks;

// One rank's engine: a deployment, its adapter and the caches it may bind.
struct Engine {
  Deployment deployment;
  FakeBackend backend;
  Lifecycle life;
  std::vector<std::string> lines;
  Engine(FakeLog& log, int rank = 0, int ranks = 1, tp::Group* group = nullptr,
         Status deployed = {})
      : deployment({rank, ranks, true, true, ML_E4M3}),
        backend(log),
        life(deployment.input, backend, group, options(std::move(deployed))) {}
  Lifecycle::Options options(Status deployed) {
    Lifecycle::Options o;
    o.deployment = std::move(deployed);
    o.library.log = [this](const std::string& line) { lines.push_back(line); };
    return o;
  }
  void bind_all() {
    for (std::int64_t id = 3; id < 6; ++id) bind(deployment.cache(id));
  }
  void bind(const ml_cache_spec& cache) {
    ASSERT_TRUE(life.bind_main(cache).ok());
    ASSERT_TRUE(life.bind_index(cache.layer_id, cache.index, 1).ok());
  }
};

constexpr StepConditions kEager{};
constexpr StepConditions kProfile{.has_metadata = false};
constexpr StepConditions kCapture{.capturing = true};

TEST(Lifecycle, TL1NothingIsBuiltBeforeEveryCacheIsBound) {
  FakeLog log;
  Engine e(log);
  for (int step = 0; step < 3; ++step) {
    if (step == 1) {
      for (std::int64_t id = 3; id < 6; ++id) {
        ASSERT_TRUE(e.life.bind_main(e.deployment.cache(id)).ok());
      }
    }
    if (step == 2) {
      ml_cache_spec none = e.deployment.cache(4);
      none.k.data = none.v.data = nullptr;
      ASSERT_TRUE(e.life.bind_main(none).ok());
      for (std::int64_t id = 3; id < 6; ++id) {
        ASSERT_TRUE(e.life.bind_index(id, e.deployment.cache(id).index, 1).ok());
      }
    }
    const auto got = e.life.acquire(kEager);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(*got, nullptr);
    EXPECT_NE(e.life.reason().find("postponed: layer"), std::string::npos) << e.life.reason();
    EXPECT_EQ(e.life.state(), LifecycleState::kIdle);
  }
  EXPECT_EQ(log.constructions, 0);
}

// L1: profiling without metadata stays native; the first eager step with everything bound builds.
TEST(Lifecycle, TL1FirstEagerStepBuilds) {
  FakeLog log;
  Engine e(log);
  e.bind_all();
  ASSERT_EQ(*e.life.acquire(kProfile), nullptr);
  EXPECT_EQ(log.constructions, 0);
  Library* built = *e.life.acquire(kEager);
  ASSERT_NE(built, nullptr);
  EXPECT_EQ(*e.life.acquire(kEager), built);
  EXPECT_EQ(*e.life.acquire(kCapture), built) << "a live library may be captured";
  EXPECT_EQ(log.constructions, 1);
  ASSERT_TRUE(e.life.close().ok());
}

TEST(Lifecycle, TL2GenerationsOfCaches) {
  FakeLog log;
  Engine e(log);
  e.bind_all();
  ASSERT_NE(*e.life.acquire(kEager), nullptr);
  EXPECT_EQ(e.life.generation(), 1);
  // A live replacement is refused, the old cache stays and nothing is closed.
  const void* old = e.life.bound(4)->k.data;
  const ml_cache_spec fresh = e.deployment.cache(4);
  EXPECT_EQ(e.life.bind_main(fresh).code(), Code::kFailedPrecondition);
  EXPECT_EQ(e.life.bind_index(4, fresh.index, 1).code(), Code::kFailedPrecondition);
  EXPECT_EQ(e.life.bound(4)->k.data, old);
  EXPECT_EQ(log.closes, 0);
  // Unbinding any main cache detaches, and doing it for every layer closes once.
  for (std::int64_t id = 3; id < 6; ++id) {
    ml_cache_spec none = e.deployment.cache(id);
    none.k.data = none.v.data = nullptr;
    ASSERT_TRUE(e.life.bind_main(none).ok());
    EXPECT_EQ(e.life.bound(id)->k.data, nullptr);
    EXPECT_EQ(e.life.bound(id)->v.data, nullptr);
  }
  ASSERT_TRUE(e.life.detach().ok());
  EXPECT_EQ(log.closes, 1);
  EXPECT_EQ(log.live_executors, 0);
  EXPECT_EQ(*e.life.acquire(kEager), nullptr);
  // The final caches get a library of their own.
  e.bind_all();
  ASSERT_NE(*e.life.acquire(kEager), nullptr);
  EXPECT_EQ(e.life.generation(), 2);
  EXPECT_EQ(log.constructions, 2);
  ASSERT_TRUE(e.life.close().ok());
  EXPECT_EQ(log.closes, 2);
}

TEST(Lifecycle, TL3OneRankNotReadyPostponesAll) {
  FakeLog log;
  on_ranks(4, [&](int rank, tp::Group& group) {
    Engine e(log, rank, 4, &group);
    if (rank != 3) e.bind_all();
    auto got = e.life.acquire(kEager);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, nullptr);
    EXPECT_EQ(e.life.state(), LifecycleState::kIdle) << "postponed, not disabled";
    if (rank == 3) e.bind_all();
    got = e.life.acquire(kEager);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_NE(*got, nullptr);
    EXPECT_TRUE(e.life.close().ok());
  });
  EXPECT_EQ(log.constructions, 4);
  EXPECT_EQ(log.live_executors, 0);
}

TEST(Lifecycle, TL4UnsupportedPeerDisablesAllAndLogsOnce) {
  FakeLog log;
  std::atomic<int> lines{0};
  on_ranks(4, [&](int rank, tp::Group& group) {
    Engine e(log, rank, 4, &group);
    e.bind_all();
    if (rank == 1) e.backend.support = Status(Code::kUnsupported, "layer 5", "odd experts");
    for (int i = 0; i < 3; ++i) {
      const auto got = e.life.acquire(kEager);
      ASSERT_TRUE(got.ok());
      EXPECT_EQ(*got, nullptr);
    }
    EXPECT_EQ(e.life.state(), LifecycleState::kDisabled);
    EXPECT_NE(e.life.reason().find("odd experts"), std::string::npos);
    lines += static_cast<int>(e.lines.size());
    EXPECT_TRUE(e.life.close().ok());
  });
  EXPECT_EQ(lines, 1);
  EXPECT_EQ(log.constructions, 0);
}

TEST(Lifecycle, TL4UnexpectedFailureOfAPeerIsRaisedOnAll) {
  FakeLog log;
  on_ranks(4, [&](int rank, tp::Group& group) {
    Engine e(log, rank, 4, &group);
    e.bind_all();
    if (rank == 1) e.backend.support = Status(Code::kInternal, "driver", "surprise");
    const auto got = e.life.acquire(kEager);
    EXPECT_EQ(got.status().code(), rank == 1 ? Code::kInternal : Code::kPeerRefused);
    EXPECT_EQ(e.life.state(), LifecycleState::kFailed);
    EXPECT_FALSE(e.life.acquire(kEager).ok()) << "never a silent native retry";
  });
  EXPECT_EQ(log.constructions, 0);
}

TEST(Lifecycle, TL5FirstUseWhileCapturingIsRefused) {
  FakeLog log;
  Engine e(log);
  e.bind_all();
  const auto got = e.life.acquire(kCapture);
  EXPECT_EQ(got.status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(log.constructions, 0);
  EXPECT_NE(*e.life.acquire(kEager), nullptr) << "an eager step may still build";
  ASSERT_TRUE(e.life.close().ok());
}

TEST(Lifecycle, TL6CloseOrder) {
  FakeLog log;
  std::atomic<int> kept{0};
  on_ranks(2, [&](int rank, tp::Group& group) {
    Engine e(log, rank, 2, &group);
    e.bind_all();
    ASSERT_NE(*e.life.acquire(kEager), nullptr);
    // Graph destruction fails on one rank: no rank frees what a replay could still reach.
    const Status graphs = rank == 1 ? Status(Code::kInternal, "graph", "in use") : Status{};
    EXPECT_FALSE(e.life.close(graphs).ok());
    kept += e.lines.empty() ? 0 : 1;
    EXPECT_TRUE(e.life.close().ok()) << "twice is harmless";
    EXPECT_EQ(e.life.acquire(kEager).status().code(), Code::kFailedPrecondition);
  });
  EXPECT_EQ(kept, 2);
  EXPECT_EQ(log.closes, 0);
  EXPECT_EQ(log.live_executors, 2);
}

TEST(Lifecycle, TL6CloseOnAllRanksFreesEverything) {
  FakeLog log;
  on_ranks(4, [&](int rank, tp::Group& group) {
    Engine e(log, rank, 4, &group);
    e.bind_all();
    ASSERT_NE(*e.life.acquire(kEager), nullptr);
    ASSERT_TRUE(e.life.close().ok());
    ASSERT_TRUE(e.life.detach().ok());
  });
  EXPECT_EQ(log.closes, 4);
  EXPECT_EQ(log.live_executors, 0);
  EXPECT_EQ(log.local_allocations, 0);
}

// A deployment the table refuses is refused before any layer is looked at.
TEST(Lifecycle, TL9RefusedDeploymentNeverTouchesLayers) {
  FakeLog log;
  on_ranks(2, [&](int rank, tp::Group& group) {
    Engine e(
        log, rank, 2, &group,
        rank == 1 ? Status(Code::kUnsupported, "pipeline_parallel", "is 2, must be 1") : Status{});
    // Placeholder layers: nothing of them is readable, nothing may be.
    const auto got = e.life.acquire(kEager);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(*got, nullptr);
    EXPECT_EQ(e.life.state(), LifecycleState::kDisabled);
    EXPECT_NE(e.life.reason().find("pipeline_parallel"), std::string::npos);
  });
  EXPECT_EQ(log.constructions, 0);
}

TEST(Lifecycle, TL10MovedCacheIsFoundBeforeLaunchAndWorksAfterRebuild) {
  FakeLog log;
  on_ranks(2, [&](int rank, tp::Group& group) {
    Engine e(log, rank, 2, &group);
    e.bind_all();
    Library* first = *e.life.acquire(kEager);
    ASSERT_NE(first, nullptr);
    std::vector<const void*> now(first->storage().begin(), first->storage().end());
    ASSERT_TRUE(e.life.acquire(kEager, now).ok());
    // The engine reallocated its caches behind the setters, on every rank.
    std::vector<ml_cache_spec> caches;
    for (std::int64_t id = 3; id < 6; ++id) caches.push_back(e.deployment.cache(id));
    LibraryInput moved = first->input();
    moved.caches = caches;
    now = storage_pointers(moved);
    const auto refused = e.life.acquire(kEager, now);
    EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
    EXPECT_NE(refused.status().to_string().find("layer 3, k cache"), std::string::npos)
        << refused.status().to_string();
    ASSERT_TRUE(e.life.rebuild(caches).ok());
    const auto again = e.life.acquire(kEager, now);
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_NE(*again, nullptr);
    EXPECT_EQ(e.life.generation(), 2);
    EXPECT_TRUE(e.life.close().ok());
  });
  EXPECT_EQ(log.live_executors, 0);
}

TEST(Lifecycle, TL11WeightChangesAreRefusedWhileBorrowed) {
  FakeLog log;
  Engine e(log);
  e.bind_all();
  EXPECT_TRUE(e.life.allow_weight_change("reload").ok());
  ASSERT_NE(*e.life.acquire(kEager), nullptr);
  EXPECT_EQ(e.life.allow_weight_change("reload").code(), Code::kFailedPrecondition);
  ASSERT_TRUE(e.life.detach().ok());
  EXPECT_TRUE(e.life.allow_weight_change("reload").ok());
}

TEST(Lifecycle, TL12TracingIsRefused) {
  FakeLog log;
  Engine e(log);
  e.bind_all();
  EXPECT_EQ(e.life.acquire({.tracing = true}).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(log.constructions, 0);
}

TEST(Lifecycle, UnknownLayersAreNamed) {
  FakeLog log;
  Engine e(log);
  ml_cache_spec cache = e.deployment.cache(2);
  EXPECT_EQ(e.life.bind_main(cache).code(), Code::kNotFound);
  EXPECT_EQ(e.life.bind_index(9, cache.index, 1).code(), Code::kNotFound);
}

}  // namespace
}  // namespace monolayer::mono

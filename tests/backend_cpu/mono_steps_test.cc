// Many steps on one executor: neighbours, order and delays change nothing; what is refused.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "backend/cpu/layer_views.h"
#include "backend/cpu/rank_slice.h"
#include "backend_cpu/mono_harness.h"
#include "backend_cpu/rank_harness.h"
#include "engine/model_loader.h"
#include "mono/plan_check.h"

namespace monolayer::test {
namespace {

ModelFormats formats() {
  return {.attention = WeightFormat::kFP8PerChannel,
          .dense = WeightFormat::kMXFP8,
          .experts = WeightFormat::kMXFP4,
          .shared = WeightFormat::kMXFP8,
          .router = DType::kF32};
}

const RandomModel& model() {
  static const RandomModel the_model(eight_way_config(), formats(), 31);
  return the_model;
}

// The weights a test runs on; they outlive it.
struct Target {
  const m3::ModelConfig& config;
  const m3::ModelWeights& weights;
};

Target target() { return {model().config, model().weights}; }

// What a step leaves, without padding.
struct Left {
  std::vector<bf16_t> hidden, residual;
  std::vector<std::int32_t> selections;
  std::vector<std::byte> entries;
  bool operator==(const Left&) const = default;
};

class Bench {
 public:
  Bench(int ranks, int rank, tp::Group* the_group, int threads, const Target& of = target()) {
    const m3::RankShape shape = m3::rank_shape(of.config, rank, ranks).value();
    config = m3::rank_config(of.config, shape);
    first_kv_head = shape.first_kv_head;
    view = cpu::slice_model(cpu::view_model(of.config, of.weights).value(), of.config, shape);
    team = cpu::ThreadTeam::create({.threads = threads, .pin = false}).value();
    group = the_group;
  }
  Pool pool(const std::vector<Request>& requests) const {
    return make_pool(config, first_kv_head, {}, requests, 5, 6, true);
  }
  std::unique_ptr<cpu::MonoExecutor> executor(const Pool& pool,
                                              const cpu::MonoOptions& options = {}) const {
    mono::ExecutorConfig c = cpu::executor_config(config, view, pool.pool->caches());
    c.group = group;
    auto made = cpu::MonoExecutor::create(c, team.get(), options);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  // Layers [0, stop) of the prepared step.
  Status layers(mono::Executor& executor, const std::vector<mono::StepRow>& rows, Left& left,
                std::int64_t stop) const {
    left.hidden = step_inputs(config, rows, 3);
    left.residual.assign(left.hidden.size(), 0);
    Status status = executor.run_layers(0, stop, left.hidden.data(), nullptr, left.hidden.data(),
                                        left.residual.data());
    left.selections.assign(executor.selections().begin(), executor.selections().end());
    return status;
  }
  Left step(mono::Executor& executor, const Pool& pool,
            const std::vector<Request>& requests) const {
    Left left;
    const auto rows = step_rows(pool, requests, {});
    Status status = executor.prepare(rows);
    EXPECT_TRUE(status.ok()) << status.to_string();
    status = layers(executor, rows, left, config.num_layers);
    EXPECT_TRUE(status.ok()) << status.to_string();
    left.entries = new_entries(config, pool, requests);
    return left;
  }

  m3::ModelConfig config;
  std::int64_t first_kv_head = 0;
  cpu::ModelView view;
  std::unique_ptr<cpu::ThreadTeam> team;
  tp::Group* group = nullptr;
};

// Sleeps or yields now and then, differently in every worker.
struct Delays {
  std::atomic<std::uint64_t> state{1};
  static void before(void* context, std::int64_t, mono::Stage, int) {
    std::uint64_t x = static_cast<Delays*>(context)->state.fetch_add(0x9e3779b97f4a7c15ULL);
    x = (x ^ (x >> 31)) * 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    if (x % 64 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(x / 64 % 200));
    } else if (x % 8 == 0) {
      std::this_thread::yield();
    }
  }
};

std::vector<Request> some_requests(std::int64_t rows, std::int64_t start = 70) {
  std::vector<Request> out;
  for (std::int64_t left = rows; left > 0; left -= 3) {
    out.push_back({start, std::min<std::int64_t>(3, left)});
    start += 40;
  }
  return out;
}

void repeat_with_delays(int ranks, int threads, int steps, const std::vector<Request>& requests,
                        const Target& of = target()) {
  on_ranks(ranks, [&](int rank, tp::Group& group) {
    const Bench run(ranks, rank, &group, threads, of);
    const Pool pool = run.pool(requests);
    Delays delays;
    delays.state = static_cast<std::uint64_t>(rank) * 77 + 1;
    const auto executor = run.executor(pool, {.before_step = Delays::before, .context = &delays});
    const Left first = run.step(*executor, pool, requests);
    for (int i = 1; i < steps && !testing::Test::HasFailure(); ++i) {
      ASSERT_TRUE(first == run.step(*executor, pool, requests)) << "step " << i;
    }
    const Status closed = executor->close();
    EXPECT_TRUE(closed.ok()) << closed.to_string();
  });
}

TEST(MonoSteps, T_P1_DelaysAtRandomStagesChangeNothing) {
  repeat_with_delays(4, 1, 100, some_requests(1));
  repeat_with_delays(4, 1, 60, some_requests(4));
  repeat_with_delays(2, 2, 60, some_requests(16));
  repeat_with_delays(1, 3, 60, some_requests(5));
}

TEST(MonoSteps, DISABLED_T_P1_TenThousandSteps) {
  repeat_with_delays(4, 1, 10000, some_requests(4));
}

// Beyond topk_blocks x block_size = 512 tokens, so that blocks are chosen.
void repeat_the_embedded_model(int steps) {
  const auto opened = engine::open_model(std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano");
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const auto weights = engine::load_weights(**opened);
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  repeat_with_delays(4, 1, steps, some_requests(4, 700), {(*opened)->config, *weights});
}

TEST(MonoSteps, T_P1_TheEmbeddedModel) { repeat_the_embedded_model(20); }

TEST(MonoSteps, DISABLED_T_P1_TenThousandStepsOfTheEmbeddedModel) {
  repeat_the_embedded_model(10000);
}

// A row's bits alone, at any index, with any neighbours.
TEST(MonoSteps, T_K8_BatchInvariance) {
  const std::vector<Request> all = {{40, 1}, {300, 3}, {150, 1}, {90, 4}, {201, 2}};
  const Bench run(1, 0, nullptr, 2);
  const auto n = static_cast<std::size_t>(run.config.hidden_size);
  std::vector<Left> alone;
  for (const Request& request : all) {
    const Pool pool = run.pool({request});
    const auto executor = run.executor(pool);
    alone.push_back(run.step(*executor, pool, {request}));
  }
  std::vector<std::size_t> order = {0, 1, 2, 3, 4};
  std::mt19937_64 random(1);
  for (int i = 0; i < 12; ++i) {
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Request> requests;
    const std::size_t count = 1 + random() % 5;
    for (std::size_t j = 0; j < count; ++j) requests.push_back(all[order[j]]);
    const Pool pool = run.pool(requests);
    const auto executor = run.executor(pool);
    const Left left = run.step(*executor, pool, requests);
    auto row = left.hidden.begin();
    for (std::size_t j = 0; j < count; ++j) {
      const auto& expected = alone[order[j]].hidden;
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), row)) << "request " << order[j];
      row += static_cast<std::ptrdiff_t>(n * static_cast<std::size_t>(requests[j].rows));
    }
  }
}

// Four rows in one step, and one after the other.
TEST(MonoSteps, T_K6_RowsOfARequestAsSequentialDecode) {
  const Bench run(1, 0, nullptr, 2);
  const Request together{126, 4};
  const Pool pool = run.pool({together});
  const auto executor = run.executor(pool);
  const Left left = run.step(*executor, pool, {together});
  const Pool other = run.pool({together});
  const auto one_by_one = run.executor(other);
  std::vector<bf16_t> hidden;
  for (std::int64_t i = 0; i < 4; ++i) {
    const Left one = run.step(*one_by_one, other, {{126 + i, 1}});
    hidden.insert(hidden.end(), one.hidden.begin(), one.hidden.end());
  }
  EXPECT_TRUE(left.hidden == hidden);
  EXPECT_TRUE(left.entries == new_entries(run.config, other, {together}));
}

// Entries beyond 2^31 and 2^32 bytes from the cache's begin.
TEST(MonoSteps, T_K4_FarAddresses) {
  const std::vector<Request> requests = {{200, 2}};
  const Bench run(1, 0, nullptr, 2);
  const Pool pool = run.pool(requests);
  mono::ExecutorConfig config = cpu::executor_config(run.config, run.view, pool.pool->caches());
  constexpr std::int64_t kStride = 3LL << 30;
  const std::int64_t pages = pool.pool->pages();
  const std::size_t bytes = static_cast<std::size_t>(kStride * pages);
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) GTEST_SKIP() << "no room for " << bytes << " bytes of addresses";
  std::int64_t offset = 0;
  for (mono::CacheView& cache : config.caches) {
    const auto move = [&](std::byte*& base, std::int64_t block_bytes) {
      std::byte* to = static_cast<std::byte*>(map) + offset;
      for (std::int64_t p = 0; p < pages; ++p) {
        std::memcpy(to + p * kStride, base + p * block_bytes,
                    static_cast<std::size_t>(block_bytes));
      }
      base = to;
      offset += 1 << 20;
    };
    move(cache.k, cache.block_bytes);
    move(cache.v, cache.block_bytes);
    if (cache.index_keys != nullptr) move(cache.index_keys, cache.index_block_bytes);
    cache.block_bytes = cache.index_block_bytes = kStride;
  }
  auto far = cpu::MonoExecutor::create(config, run.team.get(), {});
  ASSERT_TRUE(far.ok()) << far.status().to_string();
  Left here = run.step(*run.executor(pool), pool, requests);
  Left there = run.step(**far, pool, requests);
  EXPECT_TRUE(here.hidden == there.hidden);
  EXPECT_TRUE(here.selections == there.selections);
  munmap(map, bytes);
}

TEST(MonoSteps, T_P4_AbandonedStepsLeaveNothing) {
  const std::vector<Request> requests = some_requests(7);
  on_ranks(4, [&](int rank, tp::Group& group) {
    const Bench run(4, rank, &group, 1);
    const Pool pool = run.pool(requests);
    const auto executor = run.executor(pool);
    const Left expected = run.step(*executor, pool, requests);
    for (std::int64_t stop = 0; stop <= run.config.num_layers; ++stop) {
      const auto rows = step_rows(pool, {requests[0]}, {});
      ASSERT_TRUE(executor->prepare(rows).ok());
      Left ignored;
      if (stop > 0) {
        ASSERT_TRUE(run.layers(*executor, rows, ignored, stop).ok());
      }
      ASSERT_TRUE(expected == run.step(*executor, pool, requests)) << stop << " layers";
    }
    EXPECT_TRUE(executor->close().ok());
  });
}

TEST(MonoSteps, PlansKeepTheirContract) {
  const Bench run(1, 0, nullptr, 3);
  for (std::int64_t rows = 1; rows <= 16; ++rows) {
    const std::vector<Request> requests = some_requests(rows);
    const Pool pool = run.pool(requests);
    const auto executor = run.executor(pool);
    ASSERT_TRUE(executor->prepare(step_rows(pool, requests, {})).ok());
    std::vector<const mono::LayerPlan*> plans;
    plans.reserve(6);
    for (int i = 0; i < 6; ++i) plans.push_back(&executor->plan(i % run.config.num_layers));
    const Status status = mono::check_plans(plans);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
}

TEST(MonoSteps, BadRowsAreRefusedByName) {
  const Bench run(1, 0, nullptr, 1);
  const std::vector<Request> requests = {{130, 2}, {300, 1}};
  const Pool pool = run.pool(requests);
  const auto executor = run.executor(pool);
  const auto good = step_rows(pool, requests, {});
  const auto refuses = [&](const char* says, auto&& change) {
    auto rows = good;
    change(rows);
    const Status status = executor->prepare(rows);
    EXPECT_EQ(Code::kInvalidArgument, status.code()) << says;
    EXPECT_NE(std::string::npos, status.to_string().find(says)) << status.to_string();
  };
  using Rows = std::vector<mono::StepRow>;
  refuses("0 rows", [](Rows& rows) { rows.clear(); });
  refuses("17 rows", [](Rows& rows) { rows.resize(17); });
  refuses("row 2: position -1", [](Rows& rows) { rows[2].position = -1; });
  refuses("row 2: position 65536", [](Rows& rows) { rows[2].position = 65536; });
  refuses("row 1: position 132", [](Rows& rows) { rows[1].position = 132; });
  refuses("no main table", [](Rows& rows) { rows[0].main_table = nullptr; });
  refuses("no index table", [](Rows& rows) { rows[0].index_table = nullptr; });
  refuses("main slot", [](Rows& rows) { rows[0].main_slot += 1; });
  refuses("index slot", [](Rows& rows) { rows[0].index_slot = -1; });
  refuses("is block -1", [](Rows& rows) { rows[2].position = 512; });
  const std::vector<std::int32_t> beyond = {1000, 1000};
  refuses("block 1000", [&](Rows& rows) { rows[0].main_table = beyond.data(); });
  refuses("apart", [](Rows& rows) { rows.push_back(rows[0]); });
  EXPECT_TRUE(executor->prepare(good).ok());
}

TEST(MonoSteps, CallsOutOfOrder) {
  const Bench run(1, 0, nullptr, 1);
  const std::vector<Request> requests = {{130, 1}};
  const Pool pool = run.pool(requests);
  const auto executor = run.executor(pool);
  const auto rows = step_rows(pool, requests, {});
  Left left;
  EXPECT_EQ(Code::kFailedPrecondition, run.layers(*executor, rows, left, 1).code());
  ASSERT_TRUE(executor->prepare(rows).ok());
  EXPECT_EQ(Code::kInvalidArgument, run.layers(*executor, rows, left, 4).code());
  EXPECT_TRUE(run.layers(*executor, rows, left, 2).ok());
  EXPECT_EQ(Code::kFailedPrecondition, run.layers(*executor, rows, left, 1).code());
  EXPECT_TRUE(executor->close().ok());
  EXPECT_TRUE(executor->close().ok());
  EXPECT_EQ(Code::kFailedPrecondition, executor->prepare(rows).code());
}

}  // namespace
}  // namespace monolayer::test

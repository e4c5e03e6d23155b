// Mono executors whose ranks are processes: the same bits as ranks that are threads and as one
// rank, and what the others report when one is killed, stopped or delayed at each stage (T-P7).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "backend/cpu/layer_views.h"
#include "backend/cpu/rank_slice.h"
#include "backend_cpu/mono_harness.h"
#include "tp/launcher.h"
#include "tp/leftovers.h"

namespace monolayer::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using tp::Group;
using tp::RankKind;

const RandomModel& model() {
  static const RandomModel the_model(eight_way_config(),
                                     {.attention = WeightFormat::kFP8PerChannel,
                                      .dense = WeightFormat::kMXFP8,
                                      .experts = WeightFormat::kMXFP4,
                                      .shared = WeightFormat::kMXFP8,
                                      .router = DType::kF32},
                                     31);
  return the_model;
}

// One rank's model, caches and team; made on the rank itself.
struct Rank {
  m3::ModelConfig config;
  cpu::ModelView view;
  Pool pool;
  std::unique_ptr<cpu::ThreadTeam> team;
  std::unique_ptr<cpu::MonoExecutor> executor;
  std::vector<mono::StepRow> rows;
  std::vector<bf16_t> hidden, residual;

  Status make(Group& group, const std::vector<Request>& requests, const cpu::MonoOptions& options) {
    ML_ASSIGN_OR_RETURN(const m3::RankShape shape,
                        m3::rank_shape(model().config, group.rank(), group.size()));
    config = m3::rank_config(model().config, shape);
    ML_ASSIGN_OR_RETURN(cpu::ModelView whole, cpu::view_model(model().config, model().weights));
    view = cpu::slice_model(whole, model().config, shape);
    pool = make_pool(config, shape.first_kv_head, {}, requests, 5, 6, true);
    ML_ASSIGN_OR_RETURN(team, cpu::ThreadTeam::create({.threads = 2, .pin = false}));
    mono::ExecutorConfig c = cpu::executor_config(config, view, pool.pool->caches());
    c.group = &group;
    ML_ASSIGN_OR_RETURN(executor, cpu::MonoExecutor::create(c, team.get(), options));
    rows = step_rows(pool, requests, {});
    return {};
  }

  Status step(std::uint32_t seed) {
    const auto n = static_cast<std::size_t>(config.hidden_size) * rows.size();
    std::vector<bf16_t> input(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t mix = (static_cast<std::uint32_t>(i) + seed * 7919U) * 2654435761U;
      input[i] = f32_to_bf16(static_cast<float>(static_cast<std::int32_t>(mix)) * 0x1p-31F);
    }
    hidden.assign(n, bf16_t{0});
    residual.assign(n, bf16_t{0});
    ML_RETURN_IF_ERROR(executor->prepare(rows));
    return executor->run_layers(0, config.num_layers, input.data(), nullptr, hidden.data(),
                                residual.data());
  }
};

// What all ranks must agree on, as a number that fits an error message.
std::uint64_t digest(const Rank& rank) {
  std::uint64_t value = 14695981039346656037ULL;
  for (const auto* part : {&rank.hidden, &rank.residual}) {
    for (const bf16_t x : *part) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &x, sizeof bits);
      value = (value ^ bits) * 1099511628211ULL;
    }
  }
  return value;
}

class MonoProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    (void)model();
    shm_ = tp::names_in("/dev/shm");
  }
  void TearDown() override {
    EXPECT_EQ(tp::names_in("/dev/shm"), shm_);
    EXPECT_TRUE(tp::processes_mapping_memory_of(getpid()).empty());
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
  }

 private:
  std::set<std::string> shm_;
};

TEST_F(MonoProcesses, T_P1_SameBitsAsThreadsAndAsOneRank) {
  const std::vector<Request> requests = {{40, 1}, {130, 3}};
  std::uint64_t expected = 0;
  for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
    for (const int ranks : {1, 2, 4}) {
      const auto results = tp::run_ranks({kind, ranks}, [&](Group& group) -> Status {
        Rank rank;
        ML_RETURN_IF_ERROR(rank.make(group, requests, {}));
        for (int repeat = 0; repeat < 10; ++repeat) {
          ML_RETURN_IF_ERROR(rank.step(3));
          const std::uint64_t got = digest(rank);
          ML_RETURN_IF_ERROR(group.agree_same(got, "digest of the step"));
          if (kind == RankKind::kThreads && ranks == 1) expected = got;
          if (got != expected) return {Code::kInternal, "digest", "differs"};
        }
        return rank.executor->close();
      });
      ASSERT_TRUE(results.ok()) << results.status().to_string();
      for (const Status& status : *results) {
        EXPECT_TRUE(status.ok()) << ranks << " ranks: " << status.to_string();
      }
    }
  }
  EXPECT_NE(expected, 0U);
}

struct Fate {
  enum Kind { kKilled, kStopped, kDelayed } kind;
  mono::Stage stage;
  bool armed = false;  // set on the victim for the step that it does not survive

  void meet() const {
    if (kind == kKilled) kill(getpid(), SIGKILL);
    if (kind == kStopped) kill(getpid(), SIGSTOP);
    if (kind == kDelayed) std::this_thread::sleep_for(milliseconds(20));
  }
};

// Three of four ranks lose the other, in its second layer's `stage`, or wait for it.
std::vector<Status> with_fate(Fate::Kind kind, mono::Stage stage, milliseconds timeout,
                              milliseconds grace) {
  const std::vector<Request> requests = {{40, 1}, {130, 2}};
  const int victim = static_cast<int>(stage) % 4;
  auto results = tp::run_ranks({RankKind::kProcesses, 4, grace}, [&](Group& group) -> Status {
    Fate fate{kind, stage};
    cpu::MonoOptions options;
    options.timeout = timeout;
    options.context = &fate;
    options.before_step = [](void* context, std::int64_t layer, mono::Stage at, int worker) {
      const Fate& mine = *static_cast<const Fate*>(context);
      if (mine.armed && layer == 1 && at == mine.stage && worker == 1) mine.meet();
    };
    Rank rank;
    ML_RETURN_IF_ERROR(rank.make(group, requests, options));
    ML_RETURN_IF_ERROR(rank.step(1));
    ML_RETURN_IF_ERROR(group.barrier());
    fate.armed = group.rank() == victim;
    const auto start = Clock::now();
    Status status = rank.step(2);
    if (status.ok()) status = group.agree_same(digest(rank), "digest", Deadline(timeout));
    if (status.ok()) status = rank.executor->close();
    if (group.rank() != victim && Clock::now() - start > timeout + milliseconds(1000)) {
      return {Code::kInternal, "report", "later than the deadline plus one second"};
    }
    return status;
  });
  EXPECT_TRUE(results.ok()) << results.status().to_string();
  return results.ok() ? *results : std::vector<Status>(4);
}

void expect_reports(mono::Stage stage, const std::vector<Status>& results, const char* begin) {
  const auto victim = static_cast<std::size_t>(stage) % 4;
  const Status& first = results[victim == 0 ? 1 : 0];
  EXPECT_EQ(first.code(), Code::kDeadlineExceeded) << first.to_string();
  EXPECT_EQ(first.message().find(begin), 0U) << first.to_string();
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (r == victim) {
      EXPECT_NE(results[r].message().find("ended by signal 9"), std::string::npos)
          << results[r].to_string();
    } else {
      EXPECT_EQ(results[r].to_string(), first.to_string());
    }
  }
}

template <typename Body>
void at_each_stage(Body body) {
  for (int s = 0; s < mono::kStages; ++s) {
    const auto stage = static_cast<mono::Stage>(s);
    SCOPED_TRACE(std::string(mono::stage_name(stage)));
    body(stage);
  }
}

TEST_F(MonoProcesses, T_P7_KilledAtEachStage) {
  at_each_stage([](mono::Stage stage) {
    const auto start = Clock::now();
    expect_reports(stage, with_fate(Fate::kKilled, stage, milliseconds(8000), milliseconds(3000)),
                   "ended without leaving the group");
    EXPECT_LT(Clock::now() - start, milliseconds(4000));
  });
}

TEST_F(MonoProcesses, T_P7_StoppedAtEachStage) {
  // The deadline must be beyond what a rank that is merely slow needs.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr milliseconds kDeadline(3000);
#else
  constexpr milliseconds kDeadline(400);
#endif
  const std::string waited = "waited " + std::to_string(kDeadline.count()) + " ms, layer ";
  const std::string in_layer = waited + "1, stage ";
  const std::string before_it = waited + "0, stage 12, region MLP output";
  at_each_stage([&](mono::Stage stage) {
    // The process is stopped where one worker is about to begin the stage. Another may not have
    // sent all of the layer before it yet, so at the first stage that layer may be what is missing.
    std::vector<Status> results = with_fate(Fate::kStopped, stage, kDeadline, milliseconds(300));
    if (stage == mono::Stage::kInputNorm &&
        results[1].message().find("layer 0, stage ") != std::string::npos) {
      return expect_reports(stage, results, before_it.c_str());
    }
    expect_reports(stage, results, in_layer.c_str());
  });
}

TEST_F(MonoProcesses, T_P7_DelayedAtEachStageIsNoFailure) {
  at_each_stage([](mono::Stage stage) {
    for (const Status& status :
         with_fate(Fate::kDelayed, stage, milliseconds(8000), milliseconds(9000))) {
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
  });
}

}  // namespace
}  // namespace monolayer::test

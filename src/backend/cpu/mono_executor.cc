#include "backend/cpu/mono_executor.h"

#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "backend/cpu/layer_stages.h"
#include "backend/cpu/layer_views.h"
#include "backend/cpu/worker_flag.h"
#include "core/deadline.h"
#include "core/prefetch.h"
#include "mono/interpreter.h"
#include "mono/protocol.h"
#include "mono/protocol_mailbox.h"
#include "tp/group.h"

namespace monolayer::cpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

// What one worker counts and records.
struct alignas(64) WorkerLog {
  double wait_seconds = 0;
  std::vector<TaskTime> times;
};

class Mono final : public MonoExecutor {
 public:
  Mono(const mono::ExecutorConfig& config, ThreadTeam* team, const Tiles& tiles,
       const MonoOptions& options, std::unique_ptr<ThreadTeam> owned)
      : layers_(config.shape.num_layers),
        group_(config.group != nullptr && config.group->size() > 1 ? config.group : nullptr),
        workers_(options.serial ? options.serial_workers : team->size()),
        stages_(config, tiles, workers_, group_ == nullptr ? 1 : group_->size()),
        owned_(std::move(owned)),
        team_(team),
        options_(options),
        left_(static_cast<std::size_t>(workers_)),
        logs_(static_cast<std::size_t>(workers_)) {
    policy_.timeout = options.timeout;
    // Spinning helps only while every worker of every rank may have a core of its own.
    const int ranks = group_ == nullptr ? 1 : group_->size();
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    if (workers_ * ranks > cores) spin_ = std::chrono::nanoseconds(0);
    policy_.poison = group_ == nullptr ? &own_poison_ : &group_->poison();
  }

  Status connect(const mono::ExecutorConfig& config) {
    if (group_ == nullptr) return {};
    if (layers_ > mono::TagScheme::kLayers) {
      return {Code::kUnsupported, "executor",
              std::to_string(layers_) + " layers between ranks, at most " +
                  std::to_string(mono::TagScheme::kLayers)};
    }
    mono::MailboxShape shape;
    shape.rows = mono::kMaxRows;
    shape.columns = config.shape.hidden_size;
    ML_ASSIGN_OR_RETURN(mailbox_, mono::Mailbox::create(*group_, shape, deadline()));
    return {};
  }

  Status prepare(std::span<const mono::StepRow> rows) override {
    ML_RETURN_IF_ERROR(usable());
    Status status = stages_.prepare(rows);
    note_prepared(status.ok());
    if (status.code() == Code::kResourceExhausted) prepared_ = false;
    return status;
  }

  ML_STEP_CODE Status prepare_checked(std::span<const mono::StepRow> rows) override {
    Status status;  // one object throughout: moving one costs calls of memcpy()
    if (closed_ || policy_.poison->raised()) [[unlikely]] {
      refuse(status);
    } else if (stages_.take_checked(rows)) [[likely]] {
      note_prepared(true);
    } else {
      plan_anew(status);
    }
    return status;
  }

  mono::StepMemory step_memory() const override {
    mono::StepMemory memory = stages_.step_memory();
    const auto* begin =
        reinterpret_cast<const std::byte*>(static_cast<const mono::Executor*>(this));
    memory.fixed[0] = {begin, memory.fixed[0].data() + memory.fixed[0].size()};
    memory.fixed[1] = std::as_bytes(std::span(policy_.poison, 1)).first(sizeof(std::uint32_t));
    return memory;
  }

  Status run_layers(std::int64_t first, std::int64_t count, const bf16_t* hidden,
                    const bf16_t* residual, bf16_t* hidden_out, bf16_t* residual_out) override {
    ML_RETURN_IF_ERROR(usable());
    if (!prepared_) return {Code::kFailedPrecondition, "run_layers", "before prepare"};
    if (first < 0 || count < 1 || first >= layers_ || count > layers_ - first) {
      return {Code::kInvalidArgument, "run_layers",
              std::to_string(count) + " layers from " + std::to_string(first) + ", there are " +
                  std::to_string(layers_)};
    }
    if (first < next_layer_) {
      return {Code::kFailedPrecondition, "run_layers",
              "layer " + std::to_string(first) + " after layer " + std::to_string(next_layer_ - 1) +
                  " of the same step"};
    }
    if (hidden == nullptr || hidden_out == nullptr || residual_out == nullptr) {
      return {Code::kInvalidArgument, "run_layers", "a null activation"};
    }
    next_layer_ = first + count;
    stages_.begin_run({first, count, hidden, residual, hidden_out, residual_out}, mailbox_, policy_,
                      group_ == nullptr ? 0 : group_->rank());
    for (WorkerLog& log : logs_) {
      log.wait_seconds = 0;
      log.times.clear();
    }
    if (stages_.live_rows() > 0) ML_RETURN_IF_ERROR(run(first, count));
    stages_.finish_run();
    const Traffic moved = stages_.traffic();
    statistics_.weight_bytes = moved.weights;
    statistics_.cache_bytes = moved.kv_read + moved.index_read + moved.cache_written;
    statistics_.wait_seconds = 0;
    times_.clear();
    for (const WorkerLog& log : logs_) {
      statistics_.wait_seconds += log.wait_seconds;
      times_.insert(times_.end(), log.times.begin(), log.times.end());
    }
    return {};
  }

  std::span<const std::int32_t> selections() const override { return stages_.selections(); }
  const mono::ExecutorStatistics& statistics() const override { return statistics_; }
  const mono::LayerPlan& plan(std::int64_t layer) const override { return stages_.plan(layer); }
  Traffic traffic() const override { return stages_.traffic(); }
  const std::vector<TaskTime>& times() const override { return times_; }

  Status close() override {
    if (std::exchange(closed_, true)) return {};
    if (group_ == nullptr) return {};
    return mailbox_.release(*group_, deadline());
  }

 private:
  Deadline deadline() const { return Deadline(options_.timeout); }

  __attribute__((always_inline)) void note_prepared(bool ok) {
    if (!ok) return;
    prepared_ = true;
    begun_ = false;
    next_layer_ = 0;
  }
  ML_REFUSAL_CODE void refuse(Status& status) const { status = usable(); }
  ML_REFUSAL_CODE void plan_anew(Status& status) {
    status = stages_.plan_anew();
    note_prepared(status.ok());
    if (!status.ok()) prepared_ = false;
  }

  ML_REFUSAL_CODE Status usable() const {
    if (closed_) return {Code::kFailedPrecondition, "executor", "closed"};
    return policy_.poison->raised() ? policy_.poison->status() : Status{};
  }

  Status run(std::int64_t first, std::int64_t count) {
    if (!std::exchange(begun_, true) && !mailbox_.begin_step(policy_)) {
      return policy_.poison->status();
    }
    started_ = Clock::now();
    if (options_.serial) {
      walk_serially(first, count);
    } else {
      team_->each([&](int worker) { walk(worker, first, count); });
    }
    if (policy_.poison->raised()) return policy_.poison->status();
    for (std::int64_t layer = first; layer < first + count; ++layer) {
      base_ += static_cast<std::uint32_t>(stages_.plan(layer).steps.size());
    }
    return {};
  }

  // Flags count the steps a worker has left, through all layers of all runs.
  void walk(int worker, std::int64_t first, std::int64_t count) {
    WorkerFlag& mine = left_[static_cast<std::size_t>(worker)];
    std::uint32_t base = base_;
    for (std::int64_t layer = first; layer < first + count; ++layer) {
      const mono::LayerPlan& plan = stages_.plan(layer);
      const int steps = static_cast<int>(plan.steps.size());
      for (int s = 0; s < steps; ++s) {
        if (!walk_step(worker, layer, plan, s, base)) return;
        mine.publish(base + static_cast<std::uint32_t>(s) + 1);
      }
      base += static_cast<std::uint32_t>(steps);
    }
  }

  bool walk_step(int worker, std::int64_t layer, const mono::LayerPlan& plan, int s,
                 std::uint32_t base) {
    const mono::PlanStep& step = plan.steps[static_cast<std::size_t>(s)];
    if (options_.before_step != nullptr) {
      options_.before_step(options_.context, layer, step.stage, worker);
    }
    const double arrived = options_.record ? now() : 0;
    if (!wait(worker, layer, plan, s, base)) return false;
    for (const mono::Task& task : step.tasks) {
      if (task.worker != worker) continue;
      const double begin = options_.record ? now() : 0;
      if (!stages_.run_task(layer, plan, s, task)) return false;
      if (options_.record) {
        logs_[static_cast<std::size_t>(worker)].times.push_back(
            {static_cast<std::int32_t>(layer), static_cast<std::int16_t>(worker), step.stage,
             arrived, begin, now()});
      }
    }
    return true;
  }

  bool wait(int worker, std::int64_t layer, const mono::LayerPlan& plan, int s,
            std::uint32_t base) {
    const mono::PlanStep& step = plan.steps[static_cast<std::size_t>(s)];
    for (const mono::Wait& on : step.waits[static_cast<std::size_t>(worker)]) {
      WorkerFlag& flag = left_[static_cast<std::size_t>(on.worker)];
      const std::uint32_t value = base + static_cast<std::uint32_t>(on.step + 1);
      if (flag.reached(value)) continue;
      const auto before = Clock::now();
      // Only where waiting takes a core from nobody.
      while (spin_.count() > 0 && !flag.reached(value)) {
        if (!stages_.look_ahead(layer, plan, s, worker)) break;
      }
      const mono::WaitPlace place{group_ == nullptr ? 0 : group_->rank(), static_cast<int>(layer),
                                  static_cast<int>(step.stage), "worker flags"};
      const bool ok = flag.wait(value, spin_, policy_, place, on.worker);
      logs_[static_cast<std::size_t>(worker)].wait_seconds += seconds_between(before, Clock::now());
      if (!ok) return false;
    }
    return true;
  }

  void walk_serially(std::int64_t first, std::int64_t count) {
    for (std::int64_t layer = first; layer < first + count; ++layer) {
      const mono::LayerPlan& plan = stages_.plan(layer);
      spoil(plan);
      if (!mono::interpret(layer, plan, stages_)) return;
    }
  }

  // Only the stream comes from the layer before; whatever else a stage reads must be written first.
  void spoil(const mono::LayerPlan& plan) {
    const mono::RegionPlace& stream = plan.place(mono::Region::kStream);
    const std::span<std::byte> all = stages_.memory();
    const auto begin = static_cast<std::size_t>(stream.offset);
    const auto end = begin + static_cast<std::size_t>(stream.bytes);
    std::memset(all.data(), 0xff, begin);
    std::memset(all.data() + end, 0xff, all.size() - end);
  }

  double now() const { return seconds_between(started_, Clock::now()); }

  // What prepare() touches, first and together.
  WaitPolicy policy_;
  bool prepared_ = false, begun_ = false, closed_ = false;
  std::int64_t next_layer_ = 0;
  const std::int64_t layers_;
  tp::Group* const group_;
  const int workers_;
  LayerStages stages_;

  Poison own_poison_;
  const std::unique_ptr<ThreadTeam> owned_;  // or null
  ThreadTeam* const team_;
  const MonoOptions options_;
  std::vector<WorkerFlag> left_;
  std::vector<WorkerLog> logs_;
  std::uint32_t base_ = 0;
  mono::Mailbox mailbox_;
  std::chrono::nanoseconds spin_ = std::chrono::microseconds(50);
  Clock::time_point started_;
  mono::ExecutorStatistics statistics_;
  std::vector<TaskTime> times_;
};

}  // namespace

Result<std::unique_ptr<MonoExecutor>> MonoExecutor::create(const mono::ExecutorConfig& config,
                                                           ThreadTeam* team,
                                                           const MonoOptions& options,
                                                           std::unique_ptr<ThreadTeam> owned) {
  ML_RETURN_IF_ERROR(check_executor_config(config));
  const Tiles* tiles = options.tiles != nullptr ? options.tiles : find_tiles("");
  if (tiles == nullptr) return Status(Code::kInternal, "tiles", "no variant runs here");
  if (options.serial ? options.serial_workers < 1 : team == nullptr) {
    return Status(Code::kInvalidArgument, "executor", "has no workers");
  }
  try {
    auto made = std::make_unique<Mono>(config, team, *tiles, options, std::move(owned));
    ML_RETURN_IF_ERROR(made->connect(config));
    return std::unique_ptr<MonoExecutor>(std::move(made));
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "executor", "no memory for the layers' tables");
  }
}

}  // namespace monolayer::cpu

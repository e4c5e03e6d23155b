// The tasks of a layer plan on the CPU: the native chain's stages on the ranges a plan assigns.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/activations.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/index_select.h"
#include "backend/cpu/mlp.h"
#include "backend/cpu/model_view.h"
#include "backend/cpu/step_rows.h"
#include "core/deadline.h"
#include "m3/rope.h"
#include "mono/executor.h"
#include "mono/interpreter.h"
#include "mono/plan.h"
#include "mono/protocol_mailbox.h"

namespace monolayer::cpu {

// The caller's side of one run of layers; see mono::Executor::run_layers().
struct LayerRun {
  std::int64_t first = 0, count = 0;
  const bf16_t *hidden = nullptr, *residual = nullptr;
  bf16_t *hidden_out = nullptr, *residual_out = nullptr;
};

// Rows of a stored matrix, for a worker that will read them.
struct AheadPiece {
  const std::byte* data = nullptr;
  std::int64_t row_bytes = 0, stored = 0, rows = 0;  // `stored` bytes of each row
};

class LayerStages : public mono::TaskRunner {
 public:
  // `config` passed check_executor_config(). Throws std::bad_alloc.
  LayerStages(const mono::ExecutorConfig& config, const Tiles& tiles, int workers, int ranks);

  // What prepare() touches of this object, and beyond it.
  mono::StepMemory step_memory() const {
    const auto* begin = reinterpret_cast<const std::byte*>(&bounds_);
    return {{{begin, reinterpret_cast<const std::byte*>(&config_)}, {}},
            {{step_plan_.sequences().data(), sizeof(PlannedSequence)},
             {&step_plan_.row(0), sizeof(PlannedRow)}}};
  }

  // Rows of the next step; plans change only where rows cross a page or a block. As
  // mono::Executor::prepare().
  Status prepare(std::span<const mono::StepRow> rows);
  // Of rows that were checked. False: they need plan_anew() before they are run.
  bool take_checked(std::span<const mono::StepRow> rows);
  // kResourceExhausted: there are no plans then.
  Status plan_anew();
  const mono::LayerPlan& plan(std::int64_t layer) const { return plans_[kind(layer)].plan; }
  std::int64_t rows() const { return static_cast<std::int64_t>(all_rows_); }
  std::int64_t live_rows() const { return step_plan_.rows(); }

  // Before the tasks of a run. `mailbox` and `policy` are used where ranks exchange; they outlive
  // the run.
  void begin_run(const LayerRun& run, const mono::Mailbox& mailbox, const WaitPolicy& policy,
                 int rank);
  // Safe for different workers at once, in the order that the plan's waits ask for.
  bool run_task(std::int64_t layer, const mono::LayerPlan& plan, int step,
                const mono::Task& task) override;
  // Asks for a few more cache lines of the weights that a worker reads next, while it waits before
  // step `index`. False: there is nothing left to ask for.
  bool look_ahead(std::int64_t layer, const mono::LayerPlan& plan, int index, int worker);
  // Zeros for rows that are not live.
  void finish_run();

  std::span<const std::int32_t> selections() const { return selections_; }
  Traffic traffic() const;  // of the last run, over all workers
  std::span<std::byte> memory() { return {memory_.data(), memory_bytes_}; }  // of all regions

 private:
  struct Ahead {
    std::uint64_t prepared = 0;  // the step, layer and reader of `pieces`
    std::int64_t layer = -1;
    int reader = -1;
    std::vector<AheadPiece> pieces;
    std::size_t piece = 0;  // where the next line lies
    std::int64_t row = 0, at = 0, left = 0;
  };
  struct Worker {
    Activations act;  // borrowed, but what it keeps for itself
    Buffer<float> scratch, stream, roots;
    Buffer<float> rope;
    std::uint64_t rope_step = 0;  // the step whose angles `rope` holds
    std::array<Buffer<float>, kActivationKinds> gathered;
    std::vector<std::int32_t> ids;
    MlpPlan mlp;
    std::vector<SplitTerm> terms;
    Ahead ahead;
    Traffic traffic;
  };
  // Layers of one kind share plans: the same pattern and the same stored formats.
  struct Kind {
    std::int64_t layer = 0;  // an example
    mono::LayerPlan plan;
  };
  // Plans stay while rows are grouped alike and stay in their pages and blocks.
  struct RowKey {
    std::int64_t first_row = 0, block = 0;
    bool operator==(const RowKey&) const = default;
  };

  std::size_t kind(std::int64_t layer) const { return kind_of_[static_cast<std::size_t>(layer)]; }
  StepContext context(Worker& worker) const;
  StepContext context() { return context(workers_[0]); }
  void find_kinds();
  void measure();
  void allocate();
  Status make_plans();
  mono::PlanInput plan_input(const Kind& kind);
  bool same_plans();
  bool plans_hold(std::size_t rows);
  void reserve_scratch();
  void place(const mono::LayerPlan& plan);

  static int next_reader(const mono::LayerPlan& plan, int index);
  void plan_ahead(std::int64_t layer, const mono::LayerPlan& plan, int step, Worker& worker) const;
  void input_norm(const StepContext& step, Worker& worker, std::int64_t layer, Range rows);
  void project(const StepContext& step, Worker& worker, const LayerView& view, Range units);
  void heads(const StepContext& step, Worker& worker, const LayerView& view, std::int64_t layer,
             Range heads);
  void score(const StepContext& step, Worker& worker, std::int64_t layer, Range units);
  void merge(const StepContext& step, Worker& worker, std::int64_t layer,
             const mono::LayerPlan& plan, int index, Range pairs);
  void gate_up_share(const StepContext& step, Worker& worker, const LayerView& view, int share);
  bool output(const StepContext& step, Worker& worker, std::int64_t layer, mono::Stage stage,
              Range out);
  void write_out(const StepContext& step, const float* totals, Range out);

  // What prepare() touches, first and together.
  RowBounds bounds_;
  const bool any_sparse_;
  const std::int64_t plan_tokens_;  // blocks of so many positions within which plans stay
  std::size_t all_rows_ = 0;
  std::uint64_t step_ = 0;  // prepared so far
  StepPlan step_plan_;
  LiveRows live_{};                           // caller's row of each row of step_plan_
  std::array<RowKey, mono::kMaxRows> key_{};  // what the plans were made for
  std::int64_t key_rows_ = 0;                 // 0: none were made

  const m3::ModelConfig config_;
  const Tiles& tiles_;
  const std::int64_t max_context_;
  const int ranks_;
  std::vector<LayerView> views_;
  Caches caches_;
  m3::Rope rope_;

  std::vector<std::size_t> kind_of_;
  std::vector<Kind> plans_;
  AttentionPlan attention_[2];  // dense, sparse
  std::vector<ScoreTile> score_tiles_;
  ScoreSlab slab_;
  std::array<std::int64_t, mono::kRegions> largest_{};
  std::vector<unsigned> qkv_kinds_, mlp_kinds_;  // [layer]
  unsigned all_kinds_ = 0, all_mlp_kinds_ = 0;

  Buffer<std::byte> memory_;
  std::size_t memory_bytes_ = 0;
  std::vector<Worker> workers_;
  std::vector<std::int32_t> selections_;

  LayerRun run_;
  const mono::Mailbox* mailbox_ = nullptr;
  WaitPolicy policy_;
  int rank_ = 0;
};

}  // namespace monolayer::cpu

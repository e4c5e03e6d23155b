// The native chain: the stages of a step, each run on the whole team before the next begins.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/activations.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/mlp.h"
#include "backend/cpu/model_view.h"
#include "backend/cpu/native.h"
#include "m3/rope.h"
#include "tp/group.h"

namespace monolayer::cpu {

// Hidden values of every row, under its absolute position.
void trace_rows(const StepContext& step, std::int64_t layer, const float* values,
                m3::TraceSink* sink);

class NativeChain : public Native {
 public:
  // `config` and `view`: the rank's share.
  NativeChain(m3::ModelConfig config, ModelView view, ThreadTeam& team, const Tiles& tiles,
              const NativeOptions& options);

  Status step(std::span<const StepSequence> sequences, CachePool& cache, std::vector<float>& logits,
              m3::TraceSink* sink) override;
  Status prepare_for(std::span<const StepSequence> largest, CachePool& cache) override;
  std::span<const std::int32_t> greedy_ids() const override { return greedy_ids_; }
  const Traffic& last_traffic() const override { return last_; }
  const Traffic& total_traffic() const override { return total_; }
  const PathCounts& paths() const override { return paths_; }
  Status capture(std::span<const std::int64_t> layers) override;
  std::span<const float> captured() const override { return kept_; }

 protected:
  // All layers of the step, from and to act_.hidden.
  virtual Status run_layers(const StepContext& step, m3::TraceSink* sink);

  // Called between an MLP's products and their sum into the rows of `act_.hidden`.
  virtual void before_mlp_sum() {}

  Status run(const StepContext& step, std::vector<float>& logits, m3::TraceSink* sink);
  void reserve(const StepContext& step);
  // What the stages after the first take as they go, for a step as large.
  void reserve_stages(const StepContext& step);
  // Keeps act_.hidden if the stream entering `layer` was asked for.
  void keep_rows(std::int64_t layer);
  Status attention_block(const StepContext& step, std::int64_t layer, m3::TraceSink* sink);
  void select(const StepContext& step, std::int64_t layer, m3::TraceSink* sink);
  Status attend(const StepContext& step, std::int64_t layer);
  Status mlp_block(const StepContext& step, std::int64_t layer, m3::TraceSink* sink);
  Status head(const StepContext& step, std::vector<float>& logits, m3::TraceSink* sink);
  // Results of the step from logits [vocabulary part][logit row, lm_head.rows], a part a rank.
  void share_out(const float* parts, std::vector<float>& logits);
  Status check_results(const std::vector<float>& logits) const;
  Status add_down(const StepContext& step, std::span<const SplitTerm> terms);
  int ranks() const { return group_ == nullptr ? 1 : group_->size(); }

  // f(range, scratch) on every worker with its equal share of [0, total).
  template <typename F>
  void each_share(std::int64_t total, F&& f) {
    if (total == 1) {  // waking others would take as long as most of what is shared out here
      f(Range{0, 1}, scratch_[0]);
      return;
    }
    team_.each([&](int worker) {
      const Range mine = share(total, worker, team_.size());
      if (!mine.empty()) f(mine, scratch_[static_cast<std::size_t>(worker)]);
    });
  }
  // f(item, range, scratch) on every worker with its share of a work list.
  template <typename F>
  void each_work(const WorkList& work, F&& f) {
    if (work.items() == 0) return;
    team_.each([&](int worker) {
      work.each(worker, team_.size(), [&](std::int64_t item, std::int64_t begin, std::int64_t end) {
        f(item, Range{begin, end}, scratch_[static_cast<std::size_t>(worker)]);
      });
    });
  }
  void reserve_scratch(std::int64_t floats) {
    for (WorkerScratch& scratch : scratch_) scratch.floats.reserve(floats);
  }

  const m3::ModelConfig config_;
  const ModelView view_;
  ThreadTeam& team_;
  const Tiles& tiles_;
  const std::int64_t row_tile_;
  m3::ChoiceSource* const choices_;
  tp::Group* const group_;  // null: one rank

  const m3::Rope rope_;

  StepPlan plan_;
  Activations act_;
  MlpPlan mlp_;
  std::vector<RoutedExpert> chosen_;  // [rows, experts_per_token]
  std::vector<WorkerScratch> scratch_;
  std::vector<float> shard_, shards_;     // logits of one rank, and of all
  Buffer<float> all_logits_;              // of all result rows, in steps where not all are returned
  std::vector<std::uint64_t> likeliest_;  // keys of greedy rows
  std::vector<std::int32_t> greedy_ids_;
  Traffic last_, total_;
  PathCounts paths_;
  std::vector<std::int64_t> kept_layers_;
  std::vector<float> kept_;  // [rows, kept layers, hidden]
};

}  // namespace monolayer::cpu

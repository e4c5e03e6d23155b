#include <algorithm>
#include <utility>

#include "backend/cpu/layer_stages.h"
#include "backend/cpu/qkv.h"
#include "backend/cpu/row_stages.h"
#include "backend/cpu/split_sum.h"
#include "core/dtype.h"

namespace monolayer::cpu {
namespace {

Range range(const mono::Extent& units) { return {units.begin, units.end}; }

Range overlap(Range a, std::int64_t begin, std::int64_t end) {
  return {std::max(a.begin, begin) - begin, std::min(a.end, end) - begin};
}

RoutedExpert* routes(const mono::LayerPlan& plan, int worker, std::byte* memory) {
  return reinterpret_cast<RoutedExpert*>(memory + plan.place(mono::Region::kRoutes).copy(worker));
}

}  // namespace

void LayerStages::begin_run(const LayerRun& run, const mono::Mailbox& mailbox,
                            const WaitPolicy& policy, int rank) {
  run_ = run;
  mailbox_ = &mailbox;
  policy_ = policy;
  rank_ = rank;
  for (Worker& worker : workers_) worker.traffic = {};
  const LayerView& last = views_[static_cast<std::size_t>(run.first + run.count - 1)];
  if (!last.sparse) {
    selections_.clear();
    return;
  }
  selections_.assign(
      all_rows_ * static_cast<std::size_t>(config_.index_heads * config_.topk_blocks), -1);
}

void LayerStages::finish_run() {
  const auto live = static_cast<std::size_t>(live_rows());
  if (live == all_rows_) return;
  const auto n = static_cast<std::size_t>(config_.hidden_size);
  std::size_t next = 0;
  for (std::size_t r = 0; r < all_rows_; ++r) {
    if (next < live && live_[next] == static_cast<std::int64_t>(r)) {
      ++next;
      continue;
    }
    std::fill_n(run_.hidden_out + r * n, n, bf16_t{0});
    std::fill_n(run_.residual_out + r * n, n, bf16_t{0});
  }
}

bool LayerStages::run_task(std::int64_t layer, const mono::LayerPlan& plan, int index,
                           const mono::Task& task) {
  Worker& worker = workers_[static_cast<std::size_t>(task.worker)];
  const StepContext step = context(worker);
  const LayerView& view = views_[static_cast<std::size_t>(layer)];
  const mono::PlanStep& now = plan.steps[static_cast<std::size_t>(index)];
  const Range units = range(task.units);
  switch (now.stage) {
    case mono::Stage::kInputNorm:
      input_norm(step, worker, layer, units);
      return true;
    case mono::Stage::kProject:
      project(step, worker, view, units);
      return true;
    case mono::Stage::kHeads:
      heads(step, worker, view, layer, units);
      return true;
    case mono::Stage::kScore:
      score(step, worker, layer, units);
      return true;
    case mono::Stage::kSelect:
      select_blocks(step, slab_, units, worker.ids);
      return true;
    case mono::Stage::kAttend:
      attend_units(step, attention_[view.sparse ? 1 : 0], layer, now.first_unit, units,
                   worker.scratch.data(), worker.traffic);
      return true;
    case mono::Stage::kMerge:
      merge(step, worker, layer, plan, index, units);
      return true;
    case mono::Stage::kOutput:
      return output(step, worker, layer, now.stage, units);
    case mono::Stage::kPostNorm:
      norm_rows(step, view.post_norm, mlp_kinds_[static_cast<std::size_t>(layer)], units);
      return true;
    case mono::Stage::kRouter:
      router_logits(step, view, units, worker.traffic);
      return true;
    case mono::Stage::kRoute: {
      RoutedExpert* chosen = routes(plan, task.worker, memory_.data());
      for (std::int64_t r = 0; r < step_plan_.rows(); ++r) {
        route_row(step, view, r, worker.scratch.data(), chosen + r * config_.experts_per_token);
      }
      plan_experts(step, view, chosen, worker.mlp);
      return true;
    }
    case mono::Stage::kGateUp:
      gate_up_share(step, worker, view, task.worker);
      return true;
    case mono::Stage::kDown:
      return output(step, worker, layer, now.stage, units);
  }
  return false;
}

// At the begin of a run the stream is the caller's: every worker adds for itself what its norms
// read, and leaves the columns that it will add to later in the shared stream.
void LayerStages::input_norm(const StepContext& step, Worker& worker, std::int64_t layer,
                             Range rows) {
  const LayerView& view = views_[static_cast<std::size_t>(layer)];
  const unsigned kinds = qkv_kinds_[static_cast<std::size_t>(layer)];
  if (std::exchange(worker.rope_step, step_) != step_) {
    fill_rope(step, rope_, {0, step_plan_.rows()});
  }
  if (layer != run_.first) {
    norm_rows(step, view.input_norm, kinds, rows);
    return;
  }
  const std::int64_t n = config_.hidden_size;
  const auto sum = [&](std::int64_t r, std::int64_t i) {
    const std::int64_t at = live_[static_cast<std::size_t>(r)] * n + i;
    const float hidden = bf16_to_f32(run_.hidden[at]);
    return run_.residual == nullptr ? hidden : round_bf16(bf16_to_f32(run_.residual[at]) + hidden);
  };
  const auto id = static_cast<int>(&worker - workers_.data());
  const Range own = share(n, id, static_cast<int>(workers_.size()), 8);
  for (std::int64_t r = 0; r < step_plan_.rows(); ++r) {
    for (std::int64_t i = own.begin; i < own.end; ++i) {
      worker.act.hidden.data()[r * n + i] = sum(r, i);
    }
  }
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    for (std::int64_t i = 0; i < n; ++i) worker.stream.data()[r * n + i] = sum(r, i);
  }
  Buffer<float> shared;
  shared.borrow(worker.act.hidden);
  worker.act.hidden.borrow(worker.stream);
  norm_rows(step, view.input_norm, kinds, rows);
  worker.act.hidden.borrow(shared);
}

void LayerStages::project(const StepContext& step, Worker& worker, const LayerView& view,
                          Range units) {
  const Matrix* matrices[] = {&view.q, &view.k, &view.v, &view.index_q, &view.index_k};
  std::int64_t at = 0;
  for (std::int64_t item = 0; item < 5; ++item) {
    if (item >= 3 && !view.sparse) break;
    const std::int64_t end = at + matrices[item]->rows;
    const Range part = overlap(units, at, end);
    if (!part.empty()) project_qkv(step, view, item, part, worker.traffic);
    at = end;
  }
}

void LayerStages::heads(const StepContext& step, Worker& worker, const LayerView& view,
                        std::int64_t layer, Range range_of_heads) {
  const std::int64_t per_row = heads_of_row(config_, view.sparse);
  for (std::int64_t r = 0; r < step_plan_.rows(); ++r) {
    finish_heads(step, view, layer,
                 {r * per_row + range_of_heads.begin, r * per_row + range_of_heads.end},
                 worker.scratch.data(), worker.traffic);
  }
}

void LayerStages::score(const StepContext& step, Worker& worker, std::int64_t layer, Range units) {
  std::int64_t at = 0;
  for (const ScoreTile& tile : score_tiles_) {
    const Range pages = overlap(units, at, at + tile.pages);
    if (!pages.empty()) {
      score_pages(step, layer, slab_, tile.tile, pages, worker.scratch.data(), worker.traffic);
    }
    at += tile.pages;
  }
}

void LayerStages::merge(const StepContext& step, Worker& worker, std::int64_t layer,
                        const mono::LayerPlan& plan, int index, Range pairs) {
  const LayerView& view = views_[static_cast<std::size_t>(layer)];
  const AttentionPlan& attention = attention_[view.sparse ? 1 : 0];
  const mono::PlanStep& wave = plan.steps[static_cast<std::size_t>(index - 1)];
  const mono::PlanStep& now = plan.steps[static_cast<std::size_t>(index)];
  const Range units{wave.first_unit, wave.first_unit + wave.units};
  const SplitLayout layout(view.o.format, view.o.cols, step.parts);
  merge_units(step, attention, layer, layout, units,
              {pairs.begin - now.first_unit, pairs.end - now.first_unit}, worker.scratch.data());
  if (!view.sparse || layer != run_.first + run_.count - 1) return;
  // Whoever merges a part's first query in its last wave reports the part's blocks.
  const std::int64_t per_part = attention.tile_rows * config_.group_size();
  for (std::int64_t p = (pairs.begin + per_part - 1) / per_part; p * per_part < pairs.end; ++p) {
    const AttentionTile& tile = attention.tiles[static_cast<std::size_t>(p)];
    if (tile.first_unit + tile.chunks > units.end) continue;
    const std::int64_t row = live_[static_cast<std::size_t>(tile.rows.first_row)];
    std::copy_n(
        step.act.block_ids.data() + p * config_.topk_blocks, tile.chunks,
        selections_.data() + (row * config_.index_heads + tile.kv_head) * config_.topk_blocks);
  }
}

void LayerStages::gate_up_share(const StepContext& step, Worker& worker, const LayerView& view,
                                int share_index) {
  if (!view.moe) plan_dense(step, view, worker.mlp);
  const MlpPlan& mlp = worker.mlp;
  gate_up_work(mlp).each(
      share_index, static_cast<int>(workers_.size()),
      [&](std::int64_t item, std::int64_t begin, std::int64_t end) {
        const MlpGroup& group = mlp.groups[static_cast<std::size_t>(item)];
        if (mlp.gathers(group)) {
          gather_slots(step, mlp, {group.first_slot, group.first_slot + group.slots});
        }
        gate_up(step, mlp, group, {begin, end}, worker.scratch.data(), worker.traffic);
      });
}

// Roots of this worker's columns, the exchange with the other ranks, and the sum into the stream;
// after the last layer of a run into the caller's hidden instead.
bool LayerStages::output(const StepContext& step, Worker& worker, std::int64_t layer,
                         mono::Stage stage, Range out) {
  const LayerView& view = views_[static_cast<std::size_t>(layer)];
  const SplitLayout layout(view.o.format, view.o.cols, step.parts);
  SplitTerm attended;
  attended.w = &view.o;
  attended.layout = &layout;
  attended.x = step.act.attended.data();
  attended.count = step_plan_.rows();
  const bool down = stage == mono::Stage::kDown;
  if (down) worker.terms = down_terms(step, worker.mlp);
  const std::span<const SplitTerm> terms =
      down ? std::span<const SplitTerm>(worker.terms) : std::span<const SplitTerm>(&attended, 1);
  const bool last = down && layer == run_.first + run_.count - 1;
  if (ranks_ == 1 && !last) {
    add_split_products(step, terms, out, worker.scratch.data(), worker.traffic);
    return true;
  }
  float* roots = worker.roots.data();
  split_roots(step, terms, out, roots, out.size(), worker.scratch.data(), worker.traffic);
  if (ranks_ > 1) {
    const mono::Block block{.row_begin = 0,
                            .row_end = step_plan_.rows(),
                            .column_begin = out.begin,
                            .column_end = out.end,
                            .data = roots,
                            .stride = out.size()};
    const mono::WaitPlace place{rank_, static_cast<int>(layer), static_cast<int>(stage),
                                down ? "MLP output" : "attention output"};
    if (!mailbox_->all_reduce(
            mailbox_->exchange(down ? 1 : 0, static_cast<int>(layer), step_plan_.rows()), block,
            policy_, place)) {
      return false;
    }
  }
  if (last) {
    write_out(step, roots, out);
  } else {
    add_to_stream(step, roots, out.size(), out);
  }
  return true;
}

void LayerStages::write_out(const StepContext& step, const float* totals, Range out) {
  const std::int64_t n = config_.hidden_size;
  for (std::int64_t r = 0; r < step_plan_.rows(); ++r) {
    const std::int64_t to = live_[static_cast<std::size_t>(r)] * n;
    for (std::int64_t o = out.begin; o < out.end; ++o) {
      run_.hidden_out[to + o] = f32_to_bf16(totals[r * out.size() + o - out.begin]);
      run_.residual_out[to + o] = f32_to_bf16(step.act.hidden.data()[r * n + o]);
    }
  }
}

}  // namespace monolayer::cpu

#include "backend/cpu/layer_stages.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "backend/cpu/layer_views.h"
#include "backend/cpu/qkv.h"
#include "backend/cpu/row_stages.h"
#include "backend/cpu/split_sum.h"
#include "core/prefetch.h"

namespace monolayer::cpu {
namespace {

using mono::Region;

std::size_t index_of(Region region) { return static_cast<std::size_t>(region); }

constexpr std::int64_t kFloat = sizeof(float);

std::int64_t mlp_row_bytes(const MlpView& mlp) {
  return stored_row_bytes(mlp.gate) + stored_row_bytes(mlp.up);
}

std::int64_t attended_size(const LayerView& view, std::int64_t parts) {
  return SplitLayout(view.o.format, view.o.cols, parts).size();
}

std::int64_t slot_size(const LayerView& view, std::int64_t parts) {
  const auto size = [&](const MlpView& mlp) {
    return mlp.empty() ? 0 : SplitLayout(mlp.down.format, mlp.down.cols, parts).size();
  };
  std::int64_t largest = std::max(size(view.dense), size(view.shared));
  for (const MlpView& expert : view.experts) largest = std::max(largest, size(expert));
  return largest;
}

// What a plan depends on beside the rows: pattern and stored row sizes.
std::vector<std::int64_t> signature(const LayerView& view) {
  std::vector<std::int64_t> out{view.sparse, view.moe, static_cast<std::int64_t>(qkv_kinds(view)),
                                static_cast<std::int64_t>(mlp_kinds(view))};
  for (const Matrix* w :
       {&view.q, &view.k, &view.v, &view.index_q, &view.index_k, &view.o, &view.router,
        &view.dense.gate, &view.dense.down, &view.shared.gate, &view.shared.down}) {
    out.push_back(w->rows);
    out.push_back(stored_row_bytes(*w));
  }
  if (!view.experts.empty()) out.push_back(stored_row_bytes(view.experts[0].gate));
  return out;
}

}  // namespace

LayerStages::LayerStages(const mono::ExecutorConfig& config, const Tiles& tiles, int workers,
                         int ranks)
    : any_sparse_(config.shape.any_sparse()),
      plan_tokens_(any_sparse_ ? config.shape.block_size : m3::kPageTokens),
      config_(config.shape),
      tiles_(tiles),
      max_context_(std::min(config.max_context, config.shape.max_positions)),
      ranks_(ranks),
      caches_(view_caches(config.shape, config.caches)),
      rope_(config.shape.rope_theta, config.shape.rotary_dim, config.rotary),
      workers_(static_cast<std::size_t>(workers)) {
  for (const mono::LayerView& layer : config.layers) views_.push_back(view_layer(layer));
  for (const LayerView& view : views_) {
    qkv_kinds_.push_back(qkv_kinds(view));
    mlp_kinds_.push_back(mlp_kinds(view));
    all_mlp_kinds_ |= mlp_kinds_.back();
    all_kinds_ |= qkv_kinds_.back() | mlp_kinds_.back();
  }
  bounds_ = row_bounds(config_, caches_, max_context_);
  step_plan_.take(mono::kMaxRows, mono::kMaxRows);
  find_kinds();
  measure();
}

StepContext LayerStages::context(Worker& worker) const {
  return {config_, tiles_, step_plan_, caches_, worker.act, mono::kMaxRows, kParts / ranks_};
}

void LayerStages::find_kinds() {
  std::vector<std::vector<std::int64_t>> seen;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    const auto mine = signature(views_[i]);
    const auto at = std::find(seen.begin(), seen.end(), mine) - seen.begin();
    kind_of_.push_back(static_cast<std::size_t>(at));
    if (at < static_cast<std::ptrdiff_t>(seen.size())) continue;
    seen.push_back(mine);
    plans_.push_back({static_cast<std::int64_t>(i), {}});
  }
}

// Bytes of every region for the largest step.
void LayerStages::measure() {
  const m3::ModelConfig& c = config_;
  const std::int64_t rows = mono::kMaxRows, parts = kParts / ranks_;
  const CacheOptions& cache = caches_.options(0);
  std::int64_t attended = 0, slot = 0, partials = 0;
  bool any_sparse = false;
  for (const LayerView& view : views_) {
    attended = std::max(attended, attended_size(view, parts));
    slot = std::max(slot, slot_size(view, parts));
    any_sparse |= view.sparse;
    const std::int64_t unit =
        attention_tile_rows(c, view.sparse) * c.group_size() * (c.head_dim + 2);
    const std::int64_t chunks =
        view.sparse ? c.topk_blocks : (max_context_ + m3::kPageTokens - 1) / m3::kPageTokens;
    partials = std::max(
        partials, std::min(std::max(kWaveFloats, unit), rows * c.num_kv_heads * chunks * unit));
  }
  std::int64_t normed = c.hidden_size;
  for (int kind = 0; kind < kActivationKinds; ++kind) {
    if ((all_kinds_ >> kind & 1U) != 0) normed += permuted_size(kind, c.hidden_size);
  }
  const auto set = [&](Region region, std::int64_t floats) {
    largest_[index_of(region)] = floats * kFloat;
  };
  set(Region::kStream, rows * c.hidden_size);
  set(Region::kNormed, rows * normed);
  set(Region::kProjected, rows * QkvColumns(c, any_sparse).size);
  set(Region::kHeads, rows * c.num_heads * padded_columns(cache_format(cache.kv), c.head_dim) +
                          (any_sparse ? rows * c.index_heads *
                                            padded_columns(cache_format(cache.index), c.index_dim)
                                      : 0));
  if (any_sparse) {
    set(Region::kScores, rows * c.index_heads * existing_blocks(c, max_context_ - 1));
    set(Region::kSelections, rows * c.index_heads * c.topk_blocks);
  }
  set(Region::kPartials, partials);
  set(Region::kMergeState, rows * c.num_heads * (c.head_dim + 2));
  set(Region::kAttended, rows * attended);
  set(Region::kLogits, rows * c.num_experts);
  set(Region::kRoutes, rows * c.experts_per_token * 2);
  static_assert(sizeof(RoutedExpert) == 2 * kFloat);
  set(Region::kActivations, rows * (c.experts_per_token + 1) * slot);
}

Status LayerStages::prepare(std::span<const mono::StepRow> rows) {
  ML_RETURN_IF_ERROR(plan_rows(rows, bounds_, step_plan_, live_));
  return plans_hold(rows.size()) ? Status{} : plan_anew();
}

ML_STEP_CODE bool LayerStages::take_checked(std::span<const mono::StepRow> rows) {
  take_rows(rows, bounds_.sparse, step_plan_, live_);
  return plans_hold(rows.size());
}

ML_STEP_CODE bool LayerStages::plans_hold(std::size_t rows) {
  all_rows_ = rows;
  if (step_plan_.rows() == 0) return true;
  ++step_;
  return same_plans();
}

// Keeps what the plans have to be made for.
ML_STEP_CODE bool LayerStages::same_plans() {
  const std::int64_t rows = step_plan_.rows();
  bool same = rows == key_rows_;
  for (std::int64_t r = 0; r < rows; ++r) {
    const PlannedRow& row = step_plan_.row(r);
    const RowKey mine{step_plan_.sequences()[static_cast<std::size_t>(row.sequence)].first_row,
                      row.position / plan_tokens_};
    RowKey& kept = key_[static_cast<std::size_t>(r)];
    if (kept == mine) continue;
    kept = mine;
    same = false;
  }
  key_rows_ = rows;
  return same;
}

ML_REFUSAL_CODE Status LayerStages::plan_anew() {
  const std::int64_t rows = std::exchange(key_rows_, 0);  // until all of it is there
  try {
    ML_RETURN_IF_ERROR(make_plans());
    reserve_scratch();
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "step", "no memory for its buffers"};
  }
  key_rows_ = rows;
  return {};
}

Status LayerStages::make_plans() {
  const StepContext step = context();
  slab_ = {{0, step_plan_.rows()}, 0};
  score_tiles_.clear();
  if (config_.any_sparse()) {
    for (std::int64_t r = 0; r < step_plan_.rows(); ++r) {
      slab_.blocks = std::max(slab_.blocks, existing_blocks(config_, step_plan_.row(r).position));
    }
    score_tiles_ = score_tiles(step, slab_, false);
  }
  for (const bool sparse : {false, true}) {
    if (sparse && !config_.any_sparse()) continue;
    attention_[sparse ? 1 : 0] = plan_attention(step, sparse);
  }
  for (Kind& kind : plans_) {
    kind.plan = mono::make_plan(plan_input(kind));
    for (int r = 0; r < mono::kRegions; ++r) {
      const mono::RegionPlace& region = kind.plan.regions[static_cast<std::size_t>(r)];
      if (region.needed <= region.bytes) continue;
      return {Code::kInternal, "region",
              std::string(mono::region_name(static_cast<Region>(r))) + " holds " +
                  std::to_string(region.bytes) + " bytes, the step needs " +
                  std::to_string(region.needed)};
    }
  }
  allocate();
  return {};
}

mono::PlanInput LayerStages::plan_input(const Kind& kind) {
  const m3::ModelConfig& c = config_;
  const LayerView& view = views_[static_cast<std::size_t>(kind.layer)];
  const std::int64_t rows = step_plan_.rows();
  mono::PlanInput in;
  in.sparse = view.sparse;
  in.moe = view.moe;
  in.workers = static_cast<int>(workers_.size());
  in.rows = rows;
  in.hidden = c.hidden_size;
  in.heads = c.num_heads;
  in.kv_heads = c.num_kv_heads;
  in.head_dim = c.head_dim;
  in.index_heads = c.index_heads;
  in.index_dim = c.index_dim;
  in.topk = c.topk_blocks;
  const auto item = [](const Matrix& w) {
    return mono::WorkItem{w.rows, stored_row_bytes(w), stored_row_bytes(w)};
  };
  const Matrix* projections[] = {&view.q, &view.k, &view.v, &view.index_q, &view.index_k};
  for (std::size_t i = 0; i < 5; ++i) {
    if (i < 3 || view.sparse) in.projections[i] = item(*projections[i]);
  }
  in.output = item(view.o);
  if (view.moe) {
    in.router = item(view.router);
    const std::int64_t experts = std::min(rows * c.experts_per_token, c.num_experts);
    const auto group = [&](const MlpView& mlp) {
      in.gate_up.push_back({mlp.gate.rows, mlp_row_bytes(mlp), mlp_row_bytes(mlp)});
      in.down.bytes += stored_row_bytes(mlp.down);
    };
    for (std::int64_t e = 0; e < experts; ++e) group(view.experts[static_cast<std::size_t>(e)]);
    if (!view.shared.empty()) group(view.shared);
  } else {
    in.gate_up.push_back(
        {view.dense.gate.rows, mlp_row_bytes(view.dense), mlp_row_bytes(view.dense)});
    in.down.bytes = stored_row_bytes(view.dense.down);
  }
  in.down.units = c.hidden_size;
  if (view.sparse) {
    for (const ScoreTile& tile : score_tiles_) {
      in.scores.push_back({tile.tile.first_row, tile.tile.rows, tile.pages});
    }
  }
  const AttentionPlan& attention = attention_[view.sparse ? 1 : 0];
  for (const AttentionTile& tile : attention.tiles) {
    in.attention.push_back({tile.rows.first_row, tile.rows.rows, tile.kv_head, tile.chunks});
  }
  in.wave_units = attention.wave;
  in.pairs_per_part = attention.tile_rows * c.group_size();
  const std::int64_t keys = view.sparse ? c.block_size : m3::kPageTokens;
  in.attend_bytes = 2 * keys * stored_row_bytes(caches_.k_page(kind.layer, 0, 0));
  if (view.sparse) {
    in.score_bytes = m3::kPageTokens * stored_row_bytes(caches_.index_page(kind.layer, 0));
  }
  in.largest = largest_;
  for (std::size_t r = 0; r < in.needed.size(); ++r) {
    in.needed[r] = largest_[r] / mono::kMaxRows * rows;
  }
  in.needed[index_of(Region::kPartials)] = attention.wave * attention.partial_floats * kFloat;
  if (view.sparse) {
    in.needed[index_of(Region::kScores)] = rows * c.index_heads * slab_.blocks * kFloat;
  }
  return in;
}

// All plans place a region alike; the memory is taken once.
void LayerStages::allocate() {
  const mono::LayerPlan& plan = plans_[0].plan;
  memory_.reserve(plan.memory);
  memory_bytes_ = static_cast<std::size_t>(plan.memory);
  for (const Kind& kind : plans_) place(kind.plan);
  selections_.reserve(
      static_cast<std::size_t>(mono::kMaxRows * config_.index_heads * config_.topk_blocks));
}

void LayerStages::place(const mono::LayerPlan& plan) {
  const m3::ModelConfig& c = config_;
  const std::int64_t rows = mono::kMaxRows;
  const CacheOptions& cache = caches_.options(0);
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    Activations& act = workers_[w].act;
    const auto at = [&](Region region) {
      return reinterpret_cast<float*>(memory_.data() +
                                      plan.place(region).copy(static_cast<int>(w)));
    };
    const auto floats = [&](Region region) { return plan.place(region).bytes / kFloat; };
    const auto all_of = [&](Buffer<float>& buffer, Region region) {
      buffer.place(at(region), floats(region));
    };
    all_of(act.hidden, Region::kStream);
    float* next = at(Region::kNormed);
    const auto take = [&](Buffer<float>& buffer, std::int64_t count) {
      buffer.place(next, count);
      next += count;
    };
    take(act.normed, rows * c.hidden_size);
    for (int kind = 0; kind < kActivationKinds; ++kind) {
      if ((all_kinds_ >> kind & 1U) == 0) continue;
      take(act.rows[static_cast<std::size_t>(kind)], rows * permuted_size(kind, c.hidden_size));
    }
    workers_[w].rope.reserve(rows * c.rotary_dim);
    act.rope.borrow(workers_[w].rope);
    all_of(act.projected, Region::kProjected);
    next = at(Region::kHeads);
    take(act.q, rows * c.num_heads * padded_columns(cache_format(cache.kv), c.head_dim));
    if (c.any_sparse()) {
      take(act.index_q,
           rows * c.index_heads * padded_columns(cache_format(cache.index), c.index_dim));
    }
    all_of(act.block_scores, Region::kScores);
    act.block_ids.place(reinterpret_cast<std::int32_t*>(at(Region::kSelections)),
                        floats(Region::kSelections));
    all_of(act.attention_partials, Region::kPartials);
    all_of(act.attention_state, Region::kMergeState);
    all_of(act.attended, Region::kAttended);
    all_of(act.router_logits, Region::kLogits);
    all_of(act.mlp, Region::kActivations);
    for (std::size_t kind = 0; kind < kActivationKinds; ++kind) {
      act.gathered[kind].borrow(workers_[w].gathered[kind]);
    }
  }
}

void LayerStages::reserve_scratch() {
  const m3::ModelConfig& c = config_;
  const std::int64_t slots = step_plan_.rows() * (c.experts_per_token + 1);
  for (Worker& worker : workers_) {
    const StepContext step = context(worker);
    std::int64_t floats = std::max(
        {c.head_dim, c.index_dim, c.num_experts, split_scratch(step), gate_up_scratch(step)});
    for (const bool sparse : {false, true}) {
      if (sparse && !c.any_sparse()) continue;
      floats = std::max(floats, attention_scratch(step, attention_[sparse ? 1 : 0]));
    }
    if (c.any_sparse()) {
      floats = std::max(floats, score_scratch(c));
      worker.ids.reserve(static_cast<std::size_t>(slab_.blocks));
    }
    worker.scratch.reserve(floats);
    worker.stream.reserve(step_plan_.rows() * c.hidden_size);
    worker.roots.reserve(step_plan_.rows() * c.hidden_size);
    for (int kind = 0; kind < kActivationKinds; ++kind) {
      if ((all_mlp_kinds_ >> kind & 1U) == 0 || step_plan_.rows() == 1) continue;
      auto& gathered = worker.gathered[static_cast<std::size_t>(kind)];
      gathered.reserve(slots * permuted_size(kind, c.hidden_size));
      worker.act.gathered[static_cast<std::size_t>(kind)].borrow(gathered);
    }
  }
}

Traffic LayerStages::traffic() const {
  Traffic sum;
  for (const Worker& worker : workers_) sum += worker.traffic;
  return sum;
}

}  // namespace monolayer::cpu

#include "backend/cpu/native_chain.h"

#include <algorithm>

#include "backend/cpu/head.h"
#include "backend/cpu/index_select.h"
#include "backend/cpu/likeliest.h"
#include "backend/cpu/matmul_rows.h"
#include "backend/cpu/qkv.h"
#include "backend/cpu/row_stages.h"

namespace monolayer::cpu {

// Hidden values of every row, under its absolute position.
void trace_rows(const StepContext& step, std::int64_t layer, const float* values,
                m3::TraceSink* sink) {
  if (sink == nullptr) return;
  const std::int64_t n = step.config.hidden_size;
  for (std::int64_t r = 0; r < step.plan.rows(); ++r) {
    sink->hidden(layer, step.plan.row(r).position, {values + r * n, static_cast<std::size_t>(n)});
  }
}

void NativeChain::reserve(const StepContext& step) {
  const m3::ModelConfig& c = config_;
  const std::int64_t rows = plan_.rows();
  act_.hidden.reserve(rows * c.hidden_size);
  act_.normed.reserve(rows * c.hidden_size);
  act_.rope.reserve(rows * c.rotary_dim);
  unsigned kinds = 1U << activation_kind(view_.lm_head.format);
  std::int64_t attended = 0;
  bool sparse = false;
  for (const LayerView& layer : view_.layers) {
    kinds |= qkv_kinds(layer) | mlp_kinds(layer);
    attended = std::max(attended, SplitLayout(layer.o.format, layer.o.cols, step.parts).size());
    sparse |= layer.sparse;
  }
  for (int kind = 0; kind < kActivationKinds; ++kind) {
    if ((kinds >> kind & 1U) == 0) continue;
    act_.rows[static_cast<std::size_t>(kind)].reserve(rows * permuted_size(kind, c.hidden_size));
  }
  act_.projected.reserve(rows * QkvColumns(c, sparse).size);
  const CacheOptions& cache = step.cache.options(0);
  act_.q.reserve(rows * c.num_heads * padded_columns(cache_format(cache.kv), c.head_dim));
  act_.attended.reserve(rows * attended);
  if (group_ != nullptr) act_.roots.reserve(rows * c.hidden_size);
  act_.attention_state.reserve(rows * c.num_heads * (c.head_dim + 2));
  if (sparse) {
    act_.index_q.reserve(rows * c.index_heads *
                         padded_columns(cache_format(cache.index), c.index_dim));
    act_.block_ids.reserve(rows * c.index_heads * c.topk_blocks);
  }
  act_.router_logits.reserve(rows * c.num_experts);
  chosen_.resize(static_cast<std::size_t>(rows * c.experts_per_token));
  reserve_scratch(std::max(
      {c.head_dim, c.index_dim, c.num_experts, split_scratch(step), gate_up_scratch(step)}));
}

void NativeChain::reserve_stages(const StepContext& step) {
  const m3::ModelConfig& c = config_;
  const std::int64_t rows = plan_.rows(), logit_rows = plan_.logit_rows();
  for (const bool sparse : {false, true}) {
    if (sparse && !c.any_sparse()) continue;
    const AttentionPlan plan = plan_attention(step, sparse);
    act_.attention_partials.reserve(std::max(kWaveFloats, plan.partial_floats));
    reserve_scratch(attention_scratch(step, plan));
  }
  if (c.any_sparse()) {
    std::int64_t blocks = 0;
    for (std::int64_t r = 0; r < rows; ++r)
      blocks = std::max(blocks, existing_blocks(c, plan_.row(r).position));
    reserve_scratch(score_scratch(c));
    act_.block_scores.reserve(score_floats(c, rows, blocks));
    for (WorkerScratch& scratch : scratch_) scratch.ids.reserve(static_cast<std::size_t>(blocks));
  }
  for (const LayerView& view : view_.layers) {
    const auto stride = [&](const MlpView& mlp) {
      return mlp.empty() ? 0 : SplitLayout(mlp.down.format, mlp.down.cols, step.parts).size();
    };
    std::int64_t slots = rows, widest = stride(view.moe ? view.shared : view.dense);
    if (view.moe) {
      slots = rows * (c.experts_per_token + (view.shared.empty() ? 0 : 1));
      for (const MlpView& expert : view.experts) widest = std::max(widest, stride(expert));
    }
    act_.mlp.reserve(slots * widest);
    for (int kind = 0; view.moe && kind < kActivationKinds; ++kind) {
      if ((mlp_kinds(view) >> kind & 1U) == 0) continue;
      act_.gathered[static_cast<std::size_t>(kind)].reserve(slots *
                                                            permuted_size(kind, c.hidden_size));
    }
  }
  const int kind = activation_kind(view_.lm_head.format);
  act_.gathered[static_cast<std::size_t>(kind)].reserve(logit_rows *
                                                        permuted_size(kind, c.hidden_size));
  kept_.reserve(static_cast<std::size_t>(rows * c.hidden_size) * kept_layers_.size());
  for (WorkerScratch& scratch : scratch_)
    scratch.likeliest.reserve(static_cast<std::size_t>(logit_rows));
  likeliest_.reserve(static_cast<std::size_t>(logit_rows));
  greedy_ids_.reserve(static_cast<std::size_t>(logit_rows));
  if (group_ == nullptr) return all_logits_.reserve(logit_rows * view_.lm_head.rows);
  shard_.reserve(static_cast<std::size_t>(logit_rows * view_.lm_head.rows));
  shards_.reserve(static_cast<std::size_t>(logit_rows * view_.lm_head.rows * ranks()));
}

Status NativeChain::run(const StepContext& step, std::vector<float>& logits, m3::TraceSink* sink) {
  reserve(step);
  each_share(plan_.rows(), [&](Range rows, WorkerScratch&) {
    embed_rows(step, view_.embed, rows);
    fill_rope(step, rope_, rows);
  });
  ML_RETURN_IF_ERROR(run_layers(step, sink));
  return head(step, logits, sink);
}

void NativeChain::keep_rows(std::int64_t layer) {
  const auto at = std::find(kept_layers_.begin(), kept_layers_.end(), layer);
  if (at == kept_layers_.end()) return;
  const auto n = static_cast<std::size_t>(config_.hidden_size);
  const auto rows = static_cast<std::size_t>(plan_.rows());
  const std::size_t stride = kept_layers_.size() * n;
  kept_.resize(rows * stride);
  float* out = kept_.data() + static_cast<std::size_t>(at - kept_layers_.begin()) * n;
  for (std::size_t r = 0; r < rows; ++r) {
    std::copy_n(act_.hidden.data() + r * n, n, out + r * stride);
  }
}

Status NativeChain::run_layers(const StepContext& step, m3::TraceSink* sink) {
  ++paths_.native;
  for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
    keep_rows(layer);
    trace_rows(step, layer, act_.hidden.data(), sink);
    ML_RETURN_IF_ERROR(attention_block(step, layer, sink));
    ML_RETURN_IF_ERROR(mlp_block(step, layer, sink));
  }
  return {};
}

Status NativeChain::attention_block(const StepContext& step, std::int64_t layer,
                                    m3::TraceSink* sink) {
  const LayerView& view = view_.layers[static_cast<std::size_t>(layer)];
  const unsigned kinds = qkv_kinds(view);
  each_share(plan_.rows(),
             [&](Range rows, WorkerScratch&) { norm_rows(step, view.input_norm, kinds, rows); });
  each_work(qkv_work(view), [&](std::int64_t item, Range out, WorkerScratch& scratch) {
    project_qkv(step, view, item, out, scratch.traffic);
  });
  each_share(plan_.rows() * heads_of_row(config_, view.sparse),
             [&](Range heads, WorkerScratch& scratch) {
               finish_heads(step, view, layer, heads, scratch.floats.data(), scratch.traffic);
             });
  if (view.sparse) select(step, layer, sink);
  return attend(step, layer);
}

void NativeChain::select(const StepContext& step, std::int64_t layer, m3::TraceSink* sink) {
  const bool shows_scores = sink != nullptr || choices_ != nullptr;
  reserve_scratch(score_scratch(config_));
  for (std::int64_t begin = 0; begin < plan_.rows();) {
    const ScoreSlab slab = next_score_slab(step, begin);
    for (WorkerScratch& scratch : scratch_) {
      scratch.ids.reserve(static_cast<std::size_t>(slab.blocks));
    }
    act_.block_scores.reserve(slab.rows.size() * config_.index_heads * slab.blocks);
    const std::vector<ScoreTile> tiles = score_tiles(step, slab, shows_scores);
    each_work(score_work(step, tiles), [&](std::int64_t item, Range pages, WorkerScratch& scratch) {
      score_pages(step, layer, slab, tiles[static_cast<std::size_t>(item)].tile, pages,
                  scratch.floats.data(), scratch.traffic);
    });
    each_share(slab.rows.size() * config_.index_heads, [&](Range pairs, WorkerScratch& scratch) {
      select_blocks(step, slab, pairs, scratch.ids);
    });
    if (choices_ != nullptr) follow_blocks(step, slab, layer, *choices_);
    if (sink != nullptr) trace_blocks(step, slab, layer, *sink);
    begin = slab.rows.end;
  }
}

Status NativeChain::attend(const StepContext& step, std::int64_t layer) {
  const LayerView& view = view_.layers[static_cast<std::size_t>(layer)];
  const SplitLayout layout(view.o.format, view.o.cols, step.parts);
  const AttentionPlan plan = plan_attention(step, view.sparse);
  act_.attention_partials.reserve(plan.wave * plan.partial_floats);
  reserve_scratch(attention_scratch(step, plan));
  for (std::int64_t begin = 0; begin < plan.units; begin += plan.wave) {
    const Range wave{begin, std::min(plan.units, begin + plan.wave)};
    each_share(wave.size(), [&](Range units, WorkerScratch& scratch) {
      attend_units(step, plan, layer, begin, {begin + units.begin, begin + units.end},
                   scratch.floats.data(), scratch.traffic);
    });
    each_share(merge_pairs(step, plan, wave), [&](Range pairs, WorkerScratch& scratch) {
      merge_units(step, plan, layer, layout, wave, pairs, scratch.floats.data());
    });
  }
  SplitTerm term;
  term.w = &view.o;
  term.layout = &layout;
  term.x = act_.attended.data();
  term.count = plan_.rows();
  return add_down(step, {&term, 1});
}

Status NativeChain::mlp_block(const StepContext& step, std::int64_t layer, m3::TraceSink* sink) {
  const LayerView& view = view_.layers[static_cast<std::size_t>(layer)];
  const unsigned kinds = mlp_kinds(view);
  each_share(plan_.rows(),
             [&](Range rows, WorkerScratch&) { norm_rows(step, view.post_norm, kinds, rows); });
  if (view.moe) {
    WorkList router(4);
    router.add(view.router.rows, stored_row_bytes(view.router));
    each_work(router, [&](std::int64_t, Range experts, WorkerScratch& scratch) {
      router_logits(step, view, experts, scratch.traffic);
    });
    each_share(plan_.rows(), [&](Range rows, WorkerScratch& scratch) {
      for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        route_row(step, view, r, scratch.floats.data(),
                  chosen_.data() + r * config_.experts_per_token);
      }
    });
    if (choices_ != nullptr) follow_experts(step, view, layer, chosen_.data(), *choices_);
    if (sink != nullptr) trace_experts(step, view, layer, chosen_.data(), *sink);
    plan_experts(step, view, chosen_.data(), mlp_);
  } else {
    plan_dense(step, view, mlp_);
  }
  act_.mlp.reserve(mlp_.slots() * mlp_.slot_stride);
  for (int kind = 0; kind < kActivationKinds; ++kind) {
    if ((mlp_.gather_kinds >> kind & 1U) == 0) continue;
    act_.gathered[static_cast<std::size_t>(kind)].reserve(mlp_.slots() *
                                                          permuted_size(kind, config_.hidden_size));
  }
  if (mlp_.gather_kinds != 0) {
    each_share(mlp_.slots(), [&](Range slots, WorkerScratch&) { gather_slots(step, mlp_, slots); });
  }
  each_work(gate_up_work(mlp_), [&](std::int64_t item, Range out, WorkerScratch& scratch) {
    gate_up(step, mlp_, mlp_.groups[static_cast<std::size_t>(item)], out, scratch.floats.data(),
            scratch.traffic);
  });
  before_mlp_sum();
  return add_down(step, down_terms(step, mlp_));
}

Status NativeChain::add_down(const StepContext& step, std::span<const SplitTerm> terms) {
  const std::int64_t n = config_.hidden_size;
  team_.each([&](int worker) {
    WorkerScratch& scratch = scratch_[static_cast<std::size_t>(worker)];
    const Range out = share(n, worker, team_.size(), 8);
    if (group_ == nullptr) {
      add_split_products(step, terms, out, scratch.floats.data(), scratch.traffic);
    } else {
      split_roots(step, terms, out, act_.roots.data() + out.begin, n, scratch.floats.data(),
                  scratch.traffic);
    }
  });
  if (group_ == nullptr) return {};
  ML_RETURN_IF_ERROR(
      group_->all_reduce({act_.roots.data(), static_cast<std::size_t>(plan_.rows() * n)}));
  team_.each([&](int worker) {
    const Range out = share(n, worker, team_.size(), 8);
    add_to_stream(step, act_.roots.data() + out.begin, n, out);
  });
  return {};
}

Status NativeChain::head(const StepContext& step, std::vector<float>& logits, m3::TraceSink* sink) {
  if (plan_.logit_rows() == 0 && sink == nullptr) return {};
  const int kind = activation_kind(view_.lm_head.format);
  each_share(plan_.rows(), [&](Range rows, WorkerScratch&) {
    norm_rows(step, view_.final_norm, 1U << kind, rows);
  });
  trace_rows(step, config_.num_layers, act_.normed.data(), sink);
  if (plan_.logit_rows() == 0) return {};
  act_.gathered[static_cast<std::size_t>(kind)].reserve(plan_.logit_rows() *
                                                        permuted_size(kind, config_.hidden_size));
  each_share(plan_.logit_rows(),
             [&](Range rows, WorkerScratch&) { gather_logit_rows(step, view_.lm_head, rows); });
  float* shard = logits.data();
  if (group_ == nullptr && plan_.greedy_rows() > 0) {
    all_logits_.reserve(plan_.logit_rows() * view_.lm_head.rows);
    shard = all_logits_.data();
  }
  if (group_ != nullptr) {
    shard_.resize(static_cast<std::size_t>(plan_.logit_rows() * view_.lm_head.rows));
    shards_.resize(shard_.size() * static_cast<std::size_t>(ranks()));
    shard = shard_.data();
  }
  WorkList vocabulary(8);
  vocabulary.add(view_.lm_head.rows, stored_row_bytes(view_.lm_head));
  each_work(vocabulary, [&](std::int64_t, Range out, WorkerScratch& scratch) {
    head_logits(step, view_.lm_head, out, shard, scratch.traffic);
  });
  if (group_ == nullptr) {
    if (plan_.greedy_rows() > 0) share_out(shard, logits);
    return {};
  }
  ML_RETURN_IF_ERROR(group_->all_gather(std::as_bytes(std::span<const float>(shard_)),
                                        std::as_writable_bytes(std::span<float>(shards_))));
  share_out(shards_.data(), logits);
  return {};
}

void NativeChain::share_out(const float* parts, std::vector<float>& logits) {
  const std::int64_t rows = plan_.logit_rows(), each = view_.lm_head.rows;
  const auto part = [&](std::int64_t rank, std::int64_t i) {
    return parts + (rank * rows + i) * each;
  };
  const auto greedy_rows = static_cast<std::size_t>(plan_.greedy_rows());
  for (WorkerScratch& scratch : scratch_) scratch.likeliest.assign(greedy_rows, 0);
  each_share(each, [&](Range out, WorkerScratch& scratch) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t place = plan_.result_place(i);
      for (std::int64_t rank = 0; rank < ranks(); ++rank) {
        const std::span<const float> values(part(rank, i) + out.begin,
                                            static_cast<std::size_t>(out.size()));
        const std::int64_t first = rank * each + out.begin;
        if (plan_.is_greedy(i)) {
          std::uint64_t& best = scratch.likeliest[static_cast<std::size_t>(place)];
          best = std::max(best, likeliest_of(values, first));
        } else {
          std::copy(values.begin(), values.end(),
                    logits.begin() + place * config_.vocab_size + first);
        }
      }
    }
  });
  likeliest_.assign(greedy_rows, 0);
  greedy_ids_.clear();
  for (std::size_t r = 0; r < greedy_rows; ++r) {
    for (const WorkerScratch& scratch : scratch_)
      likeliest_[r] = std::max(likeliest_[r], scratch.likeliest[r]);
    greedy_ids_.push_back(likeliest_id(likeliest_[r]));
  }
}

}  // namespace monolayer::cpu

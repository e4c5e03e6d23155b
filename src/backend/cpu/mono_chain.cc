#include "backend/cpu/mono_chain.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "backend/cpu/index_select.h"
#include "backend/cpu/layer_views.h"
#include "core/dtype.h"

namespace monolayer::cpu {

namespace {

std::int64_t context_limit(const m3::ModelConfig& config, const Caches& cache) {
  return std::min(
      {config.max_positions, cache.layer(0).pages * m3::kPageTokens, mono::kMaxContext});
}
std::int64_t slot_number(const CacheSlot& slot) { return slot.page * m3::kPageTokens + slot.token; }

}  // namespace

StepShape MonoChain::shape_of(const StepContext& step) const {
  StepShape shape;
  shape.rows = step.plan.rows();
  shape.requests = static_cast<std::int64_t>(step.plan.sequences().size());
  shape.max_context = context_limit(config_, step.cache);
  shape.shortest_query = shape.rows;
  for (const PlannedSequence& sequence : step.plan.sequences()) {
    shape.shortest_query = std::min(shape.shortest_query, sequence.rows);
    shape.longest_query = std::max(shape.longest_query, sequence.rows);
    shape.longest_context = std::max(shape.longest_context, sequence.start + sequence.rows);
    shape.table_width =
        std::max(shape.table_width, static_cast<std::int64_t>(sequence.pages.size()));
  }
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    shape.highest_slot = std::max({shape.highest_slot, slot_number(step.plan.row(r).main),
                                   slot_number(step.plan.row(r).index)});
  }
  return shape;
}

std::string MonoChain::refusal(const StepContext& step) const {
  if (choices_ != nullptr) return "the rows' choices are given";
  if (policy_ != nullptr) {
    const StepShape shape = shape_of(step);
    const int rank = group_ == nullptr ? 0 : group_->rank();
    return policy_->fused(shape, rank) ? std::string() : policy_->reason(shape);
  }
  const std::int64_t rows = step.plan.rows();
  if (rows > mono::kMaxRows) {
    return std::to_string(rows) + " rows, the fused path takes " + std::to_string(mono::kMaxRows);
  }
  for (const PlannedSequence& sequence : step.plan.sequences()) {
    if (sequence.rows > mono::kMaxQueryLength) {
      return std::to_string(sequence.rows) + " rows of one sequence, the fused path takes " +
             std::to_string(mono::kMaxQueryLength);
    }
  }
  return {};
}

Status MonoChain::run_layers(const StepContext& step, m3::TraceSink* sink) {
  const std::string why = refusal(step);
  if (!why.empty()) {
    paths_.why_native = why;
    return NativeChain::run_layers(step, sink);
  }
  ML_RETURN_IF_ERROR(bind(step));
  ML_RETURN_IF_ERROR(fused(step, sink));
  ++paths_.mono;
  return {};
}

Status MonoChain::close() {
  if (executor_ == nullptr) return {};
  Status closed = executor_->close();
  executor_.reset();
  bound_ = nullptr;
  return closed;
}

// Another pool is another generation: the executor of the old one is closed first.
Status MonoChain::bind(const StepContext& step) {
  const LayerCache& first = step.cache.layer(0);
  if (executor_ != nullptr && bound_ == first.k && bound_pages_ == first.pages) return {};
  ML_RETURN_IF_ERROR(close());
  mono::ExecutorConfig config = executor_config(config_, view_, step.cache);
  config.group = group_;
  config.max_context = context_limit(config_, step.cache);
  MonoOptions options = mono_options_;
  options.tiles = &tiles_;
  ML_ASSIGN_OR_RETURN(executor_, MonoExecutor::create(config, &team_, options));
  bound_ = first.k;
  bound_pages_ = first.pages;
  return {};
}

Status MonoChain::fused(const StepContext& step, m3::TraceSink* sink) {
  rows_.clear();
  for (std::int64_t r = 0; r < step.plan.rows(); ++r) {
    const PlannedRow& row = step.plan.row(r);
    const PlannedSequence& sequence = step.plan.sequences()[static_cast<std::size_t>(row.sequence)];
    rows_.push_back({.live = true,
                     .request = row.sequence,
                     .position = row.position,
                     .main_table = sequence.pages.data(),
                     .index_table = sequence.index_pages.data(),
                     .main_slot = slot_number(row.main),
                     .index_slot = slot_number(row.index)});
  }
  const auto before = std::chrono::steady_clock::now();
  ML_RETURN_IF_ERROR(executor_->prepare(rows_));
  prepare_seconds_ =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  const auto values = static_cast<std::size_t>(step.plan.rows() * config_.hidden_size);
  hidden_.resize(values);
  residual_.resize(values);
  for (std::size_t i = 0; i < values; ++i) hidden_[i] = f32_to_bf16(act_.hidden.data()[i]);
  Traffic& traffic = scratch_[0].traffic;
  // Layers in one go up to the next whose incoming stream is wanted.
  const auto run_length = [&](std::int64_t layer) {
    if (sink != nullptr) return std::int64_t{1};
    const auto next = std::upper_bound(kept_layers_.begin(), kept_layers_.end(), layer);
    return (next == kept_layers_.end() ? config_.num_layers : *next) - layer;
  };
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < config_.num_layers; layer += count) {
    count = run_length(layer);
    keep_rows(layer);
    trace_rows(step, layer, act_.hidden.data(), sink);
    ML_RETURN_IF_ERROR(executor_->run_layers(layer, count, hidden_.data(),
                                             layer == 0 ? nullptr : residual_.data(),
                                             hidden_.data(), residual_.data()));
    for (std::size_t i = 0; i < values; ++i) {
      act_.hidden.data()[i] = round_bf16(bf16_to_f32(residual_[i]) + bf16_to_f32(hidden_[i]));
    }
    const Traffic moved = executor_->traffic();
    traffic.weights += moved.weights;
    traffic.kv_read += moved.kv_read;
    traffic.index_read += moved.index_read;
    traffic.cache_written += moved.cache_written;
    if (sink == nullptr || executor_->selections().empty()) continue;
    for (std::int64_t r = 0; r < step.plan.rows(); ++r) {
      const std::int64_t position = step.plan.row(r).position;
      for (std::int64_t head = 0; head < config_.index_heads; ++head) {
        const auto at =
            static_cast<std::size_t>((r * config_.index_heads + head) * config_.topk_blocks);
        sink->blocks(layer, position, head,
                     executor_->selections().subspan(
                         at, static_cast<std::size_t>(selected_blocks(config_, position))),
                     {});
      }
    }
  }
  return {};
}

}  // namespace monolayer::cpu

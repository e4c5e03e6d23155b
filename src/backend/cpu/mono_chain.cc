#include "backend/cpu/mono_chain.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <utility>

#include "backend/cpu/index_select.h"
#include "backend/cpu/library_views.h"
#include "backend/cpu/step_shape.h"
#include "core/dtype.h"
#include "core/prefetch.h"

namespace monolayer::cpu {
namespace {

std::int64_t context_limit(const m3::ModelConfig& config, const Caches& cache) {
  return std::min(
      {config.max_positions, cache.layer(0).pages * m3::kPageTokens, mono::kMaxContext});
}

mono::LibraryInput input_or_none(const Result<mono::LibraryInput>& layers) {
  return layers.ok() ? layers.value() : mono::LibraryInput{};
}

using Clock = std::chrono::steady_clock;

// Without a policy: whatever the library takes.
class WithinLimits final : public StepDriver {
 public:
  WithinLimits(mono::Lifecycle& lifecycle, CacheSource caches)
      : lifecycle_(lifecycle), caches_(std::move(caches)) {}

  Status step(const StepShape& shape, std::int64_t generation, mono::StepPaths& paths) override {
    reason_.clear();
    if (shape.rows > mono::kMaxRows) {
      reason_ = std::to_string(shape.rows) + " rows, the fused path takes " +
                std::to_string(mono::kMaxRows);
    } else if (shape.longest_query > mono::kMaxQueryLength) {
      reason_ = std::to_string(shape.longest_query) +
                " rows of one sequence, the fused path takes " +
                std::to_string(mono::kMaxQueryLength);
    }
    if (!reason_.empty()) return paths.run_native();
    if (lifecycle_.state() == mono::LifecycleState::kLive && generation != built_) {
      ML_RETURN_IF_ERROR(lifecycle_.rebuild(caches_()));
    }
    ML_ASSIGN_OR_RETURN(mono::Library* const library, lifecycle_.acquire({}));
    built_ = generation;
    if (library != nullptr) return paths.run_mono(*library);
    reason_ = lifecycle_.reason();
    return paths.run_native();
  }
  Status prepare(const StepShape& shape, std::int64_t generation, mono::StepPaths& paths) override {
    return step(shape, generation, paths);
  }
  const std::string& reason() const override { return reason_; }

 private:
  mono::Lifecycle& lifecycle_;
  const CacheSource caches_;
  std::int64_t built_ = 0;
  std::string reason_;
};

}  // namespace

ML_STEP_CODE MonoChain::Pool MonoChain::pool_of(const StepContext& step) {
  const LayerCache& first = step.cache.layer(0);
  return {first.k, first.pages, first.options};
}

class MonoChain::Paths final : public mono::StepPaths {
 public:
  Paths(MonoChain& chain, const StepContext& step, m3::TraceSink* sink)
      : chain_(chain), step_(step), sink_(sink) {}
  Status run_native() override { return chain_.go_native(step_, sink_); }
  Status run_mono(mono::Library& library) override;

 private:
  MonoChain& chain_;
  const StepContext& step_;
  m3::TraceSink* const sink_;
};

ML_STEP_CODE Status MonoChain::Paths::run_mono(mono::Library& library) {
  Status status = chain_.prepare_step(library, step_);
  if (status.ok()) chain_.fused(library, step_, sink_, status);
  return status;
}

// A step that is prepared and then abandoned.
class MonoChain::Preparation final : public mono::StepPaths {
 public:
  explicit Preparation(const ml_step& step) : step_(step) {}
  Status run_native() override { return {}; }
  Status run_mono(mono::Library& library) override { return library.prepare_step(step_); }

 private:
  const ml_step& step_;
};

MonoChain::MonoChain(m3::ModelConfig config, ModelView view, ThreadTeam& team, const Tiles& tiles,
                     const NativeOptions& options, Result<mono::LibraryInput> layers)
    : NativeChain(std::move(config), std::move(view), team, tiles, options),
      backend_(&team, {.tiles = &tiles}),
      lifecycle_(input_or_none(layers), backend_, group_,
                 {.library = {}, .deployment = layers.status()}) {
  if (layers.ok()) {
    for (const mono::LayerInput& layer : layers->layers) {
      fused_layers_.push_back(layer.spec.layer_id);
    }
  }
  const CacheSource caches = [this] { return caches_; };
  if (options.policy != nullptr) {
    driver_ = options.policy->driver(lifecycle_, caches, group_ == nullptr ? 0 : group_->rank());
  } else {
    driver_ = std::make_unique<WithinLimits>(lifecycle_, caches);
  }
  driver_memory_ = driver_->step_memory();
  driver_virtuals_ = virtuals_of(driver_.get());
}

void MonoChain::set_mono_options(MonoOptions options) {
  options.tiles = &tiles_;
  backend_.set_options(options);
}

const MonoExecutor* MonoChain::executor() {
  mono::Library* const library = lifecycle_.library();
  return library == nullptr ? nullptr : &executor_of(*library);
}

Status MonoChain::close() { return lifecycle_.close(); }

// The last step has read more than the caches hold. What decides and checks this one is asked for
// while its rows are planned and embedded.
ML_STEP_CODE void MonoChain::ask_for_step(std::int64_t rows) {
  ask_for(&driver_, static_cast<std::size_t>(reinterpret_cast<const char*>(&tables_ + 1) -
                                             reinterpret_cast<const char*>(&driver_)));
  if (lifecycle_.library() != nullptr) lifecycle_.library()->ask_for_step(rows);
  for (const auto& part : driver_memory_) ask_for(part.data(), part.size());
  ask_for(driver_virtuals_, kCacheLine);
}

Status MonoChain::step(std::span<const StepSequence> sequences, CachePool& cache,
                       std::vector<float>& logits, m3::TraceSink* sink) {
  const auto before = Clock::now();
  std::int64_t rows = 0;
  for (const StepSequence& sequence : sequences) {
    rows += static_cast<std::int64_t>(sequence.tokens.size());
  }
  if (rows <= mono::kMaxRows) ask_for_step(rows);
  ask_for(cache.caches().layers.data(), sizeof(LayerCache));
  asking_ = Clock::now() - before;
  return NativeChain::step(sequences, cache, logits, sink);
}

ML_STEP_CODE Status MonoChain::run_layers(const StepContext& step, m3::TraceSink* sink) {
  arrived_ = Clock::now();
  if (choices_ != nullptr) [[unlikely]]
    return go_native(step, sink);
  if (!(pool_of(step) == bound_)) [[unlikely]]
    ML_RETURN_IF_ERROR(bind(step));
  Paths paths(*this, step, sink);
  return driver_->step(shape_of(step.plan, context_limit(config_, step.cache)), generation_, paths);
}

Status MonoChain::go_native(const StepContext& step, m3::TraceSink* sink) {
  paths_.why_native = choices_ != nullptr ? "the rows' choices are given" : driver_->reason();
  return NativeChain::run_layers(step, sink);
}

// Another pool is another generation. The first is bound at once; later ones when whoever drives
// the steps has the library of the old one closed.
ML_REFUSAL_CODE Status MonoChain::bind(const StepContext& step) {
  bound_ = {};  // nothing, should what follows fail
  caches_.clear();
  for (const std::int64_t layer : fused_layers_) {
    caches_.push_back(
        cache_spec(config_, step.cache.layer(layer), layer, context_limit(config_, step.cache)));
  }
  if (lifecycle_.library() == nullptr) {
    for (const ml_cache_spec& cache : caches_) {
      ML_RETURN_IF_ERROR(lifecycle_.bind_main(cache));
      ML_RETURN_IF_ERROR(lifecycle_.bind_index(cache.layer_id, cache.index, cache.index_scale));
    }
  }
  bound_ = pool_of(step);
  ++generation_;
  return {};
}

// The fused path's own memory, by as many rows as it takes at the longest context: two sequences
// with the same prefix, where there are pages for the second one's last tokens.
Status MonoChain::prepare_for(std::span<const StepSequence> largest, CachePool& cache) {
  ML_RETURN_IF_ERROR(NativeChain::prepare_for(largest, cache));
  if (choices_ != nullptr) return {};
  const StepSequence& whole = largest.front();
  const auto given = static_cast<std::int64_t>(whole.tokens.size());
  const std::int64_t length = std::min(whole.start + given, context_limit(config_, cache.caches()));
  const std::int64_t query = std::min({std::int64_t{mono::kMaxQueryLength}, length, given});
  const std::int64_t start = length - query;
  try {
    const std::int64_t first = start / m3::kPageTokens, last = (length - 1) / m3::kPageTokens;
    const auto table = whole.pages.first(static_cast<std::size_t>(last + 1));
    std::vector<std::int32_t> pages(table.begin(), table.end());
    std::vector<StepSequence> sequences{
        {whole.tokens.first(static_cast<std::size_t>(query)), start, table, 1}};
    std::int32_t spare = 1 + *std::max_element(pages.begin(), pages.end());
    if (spare + last - first < cache.pages()) {
      for (std::int64_t i = first; i <= last; ++i) pages[static_cast<std::size_t>(i)] = spare++;
      sequences.push_back(sequences.front());
      sequences.back().pages = pages;
    }
    ML_RETURN_IF_ERROR(plan_.build(sequences, config_, cache));
    const StepContext step{config_, tiles_,    plan_,           cache.caches(),
                           act_,    row_tile_, kParts / ranks()};
    hidden_.reserve(static_cast<std::size_t>(mono::kMaxRows * config_.hidden_size));
    no_residual_.resize(hidden_.capacity(), f32_to_bf16(-0.0F));
    if (!(pool_of(step) == bound_)) ML_RETURN_IF_ERROR(bind(step));
    const ml_step prepared = library_step(step);
    Preparation paths(prepared);
    return driver_->prepare(shape_of(plan_, context_limit(config_, step.cache)), generation_,
                            paths);
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "step", "no memory for the fused path"};
  }
}

ML_REFUSAL_CODE void MonoChain::widen_tables(std::size_t entries) { tables_.resize(entries); }

// Tables of several sequences side by side; -1 beyond a sequence's blocks, which is never followed.
// Column by column, since there are more sequences than blocks until contexts are long.
ML_STEP_CODE const std::int32_t* MonoChain::lay_tables(std::span<const PlannedSequence> sequences,
                                                       std::size_t width) {
  if (tables_.size() < width * sequences.size()) [[unlikely]]
    widen_tables(width * sequences.size());
  for (std::size_t i = 0; i < width; ++i) {
    std::int32_t* to = tables_.data() + i;
    for (const PlannedSequence& sequence : sequences) {
      *to = i < sequence.pages.size() ? sequence.pages[i] : -1;
      to += width;
    }
  }
  return tables_.data();
}

// One table serves both caches of a chain, whose pages lie in one pool.
ML_STEP_CODE ml_step MonoChain::library_step(const StepContext& step) {
  StepArrays& a = arrays_;
  const auto sequences = step.plan.sequences();
  std::size_t width = 0;
  for (std::size_t r = 0; r < sequences.size(); ++r) {
    const PlannedSequence& sequence = sequences[r];
    width = std::max(width, sequence.pages.size());
    a.query_lens[r] = static_cast<std::int32_t>(sequence.rows);
    a.seq_lens[r] = static_cast<std::int32_t>(sequence.start + sequence.rows);
  }
  const std::int64_t rows = step.plan.rows();
  for (std::int64_t r = 0; r < rows; ++r) {
    const PlannedRow& row = step.plan.row(r);
    const auto i = static_cast<std::size_t>(r);
    a.main_slots[i] = slot_number(row.main);
    a.index_slots[i] = slot_number(row.index);
    a.positions[i] = row.position;
  }
  ml_step out{};
  out.size = sizeof out;
  out.token_count = static_cast<std::int32_t>(rows);
  out.requests = static_cast<std::int32_t>(sequences.size());
  out.table_width = out.index_table_width = static_cast<std::int32_t>(width);
  out.query_lens = a.query_lens.data();
  out.seq_lens = a.seq_lens.data();
  out.main_table = out.index_table =
      sequences.size() == 1 ? sequences[0].pages.data() : lay_tables(sequences, width);
  out.main_slots = a.main_slots.data();
  out.index_slots = a.index_slots.data();
  return out;
}

ML_STEP_CODE Status MonoChain::prepare_step(mono::Library& library, const StepContext& step) {
  Status status = library.prepare_step(library_step(step));
  preparing_ = Clock::now() - arrived_;
  return status;
}

void MonoChain::fused(mono::Library& library, const StepContext& step, m3::TraceSink* sink,
                      Status& status) {
  status = run_fused(library, step, sink);
  if (status.ok()) ++paths_.mono;
}

Status MonoChain::run_fused(mono::Library& library, const StepContext& step, m3::TraceSink* sink) {
  auto next = fused_layers_.begin();
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < config_.num_layers; layer += count) {
    keep_rows(layer);
    trace_rows(step, layer, act_.hidden.data(), sink);
    count = 1;
    if (next == fused_layers_.end() || *next != layer) {
      ML_RETURN_IF_ERROR(attention_block(step, layer, sink));
      ML_RETURN_IF_ERROR(mlp_block(step, layer, sink));
      continue;
    }
    // Layers in one go: up to the next that is not fused or whose incoming stream is wanted.
    for (++next; next != fused_layers_.end() && *next == layer + count && sink == nullptr; ++next) {
      if (std::binary_search(kept_layers_.begin(), kept_layers_.end(), *next)) break;
      ++count;
    }
    ML_RETURN_IF_ERROR(forward(library, step, layer, count, sink));
  }
  return {};
}

Status MonoChain::forward(mono::Library& library, const StepContext& step, std::int64_t first,
                          std::int64_t count, m3::TraceSink* sink) {
  const std::int64_t rows = step.plan.rows();
  const auto values = static_cast<std::size_t>(rows * config_.hidden_size);
  hidden_.resize(values);
  for (std::size_t i = 0; i < values; ++i) hidden_[i] = f32_to_bf16(act_.hidden.data()[i]);
  // The stream as a whole: -0 is what leaves every value as it is, signed zeros included.
  if (no_residual_.size() < values) no_residual_.resize(values, f32_to_bf16(-0.0F));
  const auto activation = [&](const bf16_t* data) {
    return host_tensor(data, ML_BF16, ML_LAYOUT_ROWS, {rows, config_.hidden_size});
  };
  mono::LibraryOutput out;
  ML_RETURN_IF_ERROR(library.forward_layers(
      first, count, activation(hidden_.data()), activation(no_residual_.data()),
      host_tensor(arrays_.positions.data(), ML_I64, ML_LAYOUT_ROWS, {rows}), out));
  for (std::size_t i = 0; i < values; ++i) {
    act_.hidden.data()[i] = round_bf16(bf16_to_f32(out.residual[i]) + bf16_to_f32(out.hidden[i]));
  }
  const MonoExecutor& executor = executor_of(library);
  scratch_[0].traffic += executor.traffic();
  if (sink == nullptr) return {};
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t position = step.plan.row(r).position;
    for (std::int64_t head = 0; head < config_.index_heads; ++head) {
      const auto at =
          static_cast<std::size_t>((r * config_.index_heads + head) * config_.topk_blocks);
      sink->blocks(first, position, head,
                   executor.selections().subspan(
                       at, static_cast<std::size_t>(selected_blocks(config_, position))),
                   {});
    }
  }
  return {};
}

}  // namespace monolayer::cpu

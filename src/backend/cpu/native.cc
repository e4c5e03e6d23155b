#include "backend/cpu/native.h"

#include <algorithm>
#include <new>
#include <string>

#include "backend/cpu/head.h"
#include "backend/cpu/likeliest.h"
#include "backend/cpu/mono_chain.h"
#include "backend/cpu/native_chain.h"
#include "backend/cpu/rank_slice.h"
#include "mono/library_bind.h"

namespace monolayer::cpu {
Result<std::unique_ptr<Native>> Native::create(const m3::ModelConfig& config,
                                               const m3::ModelWeights& weights, ThreadTeam& team,
                                               const NativeOptions& options) {
  if (options.prefill_tile < 1) {
    return Status(Code::kInvalidArgument, "prefill_tile",
                  std::to_string(options.prefill_tile) + ", at least 1");
  }
  if (options.rotary.data != nullptr && options.rotary.positions < config.max_positions) {
    return Status(Code::kInvalidArgument, "rotary table",
                  "of " + std::to_string(options.rotary.positions) + " positions, the model has " +
                      std::to_string(config.max_positions));
  }
  const Tiles* tiles = options.tiles != nullptr ? options.tiles : find_tiles("");
  if (tiles == nullptr) return Status(Code::kInternal, "tiles", "no variant runs here");
  try {
    ML_ASSIGN_OR_RETURN(ModelView view, view_model(config, weights));
    m3::ModelConfig local = config;
    const int ranks = options.group != nullptr ? options.group->size() : 1;
    const int rank = ranks > 1 ? options.group->rank() : 0;
    if (ranks > 1) {
      ML_ASSIGN_OR_RETURN(const m3::RankShape shape, m3::rank_shape(config, rank, ranks));
      view = slice_model(view, config, shape);
      local = m3::rank_config(config, shape);
    }
    if (options.fused) {
      return std::unique_ptr<Native>(
          std::make_unique<MonoChain>(local, std::move(view), team, *tiles, options,
                                      mono::bind_library(config, weights, rank, ranks)));
    }
    return std::unique_ptr<Native>(
        std::make_unique<NativeChain>(local, std::move(view), team, *tiles, options));
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "native chain", "no memory for the model's tables");
  }
}

Status Native::capture(std::span<const std::int64_t> layers) {
  if (layers.empty()) return {};
  return {Code::kUnsupported, "hidden states", "of single layers are not kept by this chain"};
}

Status NativeChain::capture(std::span<const std::int64_t> layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] >= 0 && layers[i] < config_.num_layers && (i == 0 || layers[i] > layers[i - 1])) {
      continue;
    }
    return {Code::kInvalidArgument, "hidden states",
            "of layer " + std::to_string(layers[i]) + "; must ascend within " +
                std::to_string(config_.num_layers) + " layers"};
  }
  kept_layers_.assign(layers.begin(), layers.end());
  kept_.clear();
  return {};
}

NativeChain::NativeChain(m3::ModelConfig config, ModelView view, ThreadTeam& team,
                         const Tiles& tiles, const NativeOptions& options)
    : config_(std::move(config)),
      view_(std::move(view)),
      team_(team),
      tiles_(tiles),
      row_tile_(options.prefill_tile),
      choices_(options.choices),
      group_(options.group != nullptr && options.group->size() > 1 ? options.group : nullptr),
      rope_(config_.rope_theta, config_.rotary_dim, options.rotary),
      scratch_(static_cast<std::size_t>(team.size())) {}

Status NativeChain::prepare_for(std::span<const StepSequence> largest, CachePool& cache) {
  if (!cache.fits(config_)) {
    return {Code::kInvalidArgument, "cache", "the pool was made for another model"};
  }
  try {
    ML_RETURN_IF_ERROR(plan_.build(largest, config_, cache));
    const StepContext step{config_, tiles_,    plan_,           cache.caches(),
                           act_,    row_tile_, kParts / ranks()};
    reserve(step);
    reserve_stages(step);
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "step",
            "no memory for the activations of " + std::to_string(plan_.rows()) + " rows"};
  }
  return {};
}

Status NativeChain::step(std::span<const StepSequence> sequences, CachePool& cache,
                         std::vector<float>& logits, m3::TraceSink* sink) {
  if (!cache.fits(config_)) {
    return {Code::kInvalidArgument, "cache", "the pool was made for another model"};
  }
  try {
    ML_RETURN_IF_ERROR(plan_.build(sequences, config_, cache));
    const StepContext step{config_, tiles_,    plan_,           cache.caches(),
                           act_,    row_tile_, kParts / ranks()};
    logits.resize(static_cast<std::size_t>(plan_.full_rows() * config_.vocab_size));
    likeliest_.clear();
    greedy_ids_.clear();
    for (WorkerScratch& scratch : scratch_) scratch.traffic = {};
    ML_RETURN_IF_ERROR(run(step, logits, sink));
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "step",
            "no memory for the activations of " + std::to_string(plan_.rows()) + " rows"};
  }
  last_ = {};
  for (const WorkerScratch& scratch : scratch_) last_ += scratch.traffic;
  total_ += last_;

  return check_results(logits);
}

Status NativeChain::check_results(const std::vector<float>& logits) const {
  const auto refuse = [](const PlannedRow& row, std::int64_t token) -> Status {
    return {Code::kInternal, "logits",
            "not finite at position " + std::to_string(row.position) + " of sequence " +
                std::to_string(row.sequence) + ", token " + std::to_string(token)};
  };
  for (std::size_t i = 0; i < likeliest_.size(); ++i) {
    if (!likeliest_is_finite(likeliest_[i]))
      return refuse(plan_.row_of_result(static_cast<std::int64_t>(i), true), greedy_ids_[i]);
  }
  const std::int64_t bad = first_non_finite(logits, {0, static_cast<std::int64_t>(logits.size())});
  if (bad < 0) return {};
  return refuse(plan_.row_of_result(bad / config_.vocab_size, false), bad % config_.vocab_size);
}

}  // namespace monolayer::cpu

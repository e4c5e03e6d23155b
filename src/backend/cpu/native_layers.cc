#include "backend/cpu/native_layers.h"

#include <algorithm>
#include <new>
#include <utility>

#include "backend/cpu/index_select.h"
#include "backend/cpu/layer_views.h"
#include "backend/cpu/qkv.h"
#include "backend/cpu/step_rows.h"

namespace monolayer::cpu {
namespace {

ModelView layers_only(const mono::ExecutorConfig& config) {
  ModelView view;
  for (const mono::LayerView& layer : config.layers) view.layers.push_back(view_layer(layer));
  return view;
}

NativeOptions options_of(const mono::ExecutorConfig& config) {
  NativeOptions options;
  options.group = config.group;
  options.rotary = config.rotary;
  return options;
}

}  // namespace

NativeLayerChain::NativeLayerChain(const mono::ExecutorConfig& config, ThreadTeam& team,
                                   const Tiles& tiles)
    : NativeChain(config.shape, layers_only(config), team, tiles, options_of(config)),
      caches_(view_caches(config.shape, config.caches)),
      bounds_(row_bounds(config.shape, caches_, config.max_context)) {}

Status NativeLayerChain::prepare_rows(std::span<const mono::StepRow> rows) {
  ML_RETURN_IF_ERROR(plan_rows(rows, bounds_, plan_, live_));
  caller_rows_ = rows.size();
  return {};
}

// The sum is then taken from -0, which leaves every addend as it is, signed zeros included.
void NativeLayerChain::before_mlp_sum() {
  const auto n = static_cast<std::size_t>(plan_.rows() * config_.hidden_size);
  middle_.assign(act_.hidden.data(), act_.hidden.data() + n);
  std::fill_n(act_.hidden.data(), n, -0.0F);
}

Status NativeLayerChain::run_layer(std::int64_t layer, const bf16_t* hidden, const bf16_t* residual,
                                   bf16_t* hidden_out, bf16_t* residual_out) {
  const auto width = static_cast<std::size_t>(config_.hidden_size);
  const LayerView& view = view_.layers[static_cast<std::size_t>(layer)];
  const auto live = static_cast<std::size_t>(plan_.rows());
  const auto per_row = static_cast<std::size_t>(config_.index_heads * config_.topk_blocks);
  selections_.assign(view.sparse ? caller_rows_ * per_row : 0, -1);
  if (live > 0) {
    const StepContext step{config_, tiles_, plan_, caches_, act_, row_tile_, kParts / ranks()};
    reserve(step);
    each_share(plan_.rows(), [&](Range rows, WorkerScratch&) { fill_rope(step, rope_, rows); });
    for (std::size_t i = 0; i < live; ++i) {
      const std::size_t from = static_cast<std::size_t>(live_[i]) * width;
      float* to = act_.hidden.data() + i * width;
      for (std::size_t c = 0; c < width; ++c) {
        to[c] = bf16_to_f32(hidden[from + c]);
        if (residual != nullptr) to[c] = round_bf16(bf16_to_f32(residual[from + c]) + to[c]);
      }
    }
    ML_RETURN_IF_ERROR(attention_block(step, layer, nullptr));
    ML_RETURN_IF_ERROR(mlp_block(step, layer, nullptr));
  }
  std::fill_n(hidden_out, caller_rows_ * width, bf16_t{0});
  std::fill_n(residual_out, caller_rows_ * width, bf16_t{0});
  for (std::size_t i = 0; i < live; ++i) {
    const auto row = static_cast<std::size_t>(live_[i]);
    for (std::size_t c = 0; c < width; ++c) {
      hidden_out[row * width + c] = f32_to_bf16(act_.hidden.data()[i * width + c]);
      residual_out[row * width + c] = f32_to_bf16(middle_[i * width + c]);
    }
    if (!view.sparse) continue;
    const std::int64_t count =
        selected_blocks(config_, plan_.row(static_cast<std::int64_t>(i)).position);
    for (std::int64_t head = 0; head < config_.index_heads; ++head) {
      const std::int64_t place = head * config_.topk_blocks;
      std::copy_n(act_.block_ids.data() + static_cast<std::int64_t>(i * per_row) + place, count,
                  selections_.begin() + static_cast<std::int64_t>(row * per_row) + place);
    }
  }
  return {};
}

Result<std::unique_ptr<mono::Executor>> NativeLayers::create(const mono::ExecutorConfig& config,
                                                             int threads, const Tiles* tiles) {
  ML_RETURN_IF_ERROR(check_executor_config(config));
  try {
    auto layers = std::unique_ptr<NativeLayers>(new NativeLayers());
    ML_ASSIGN_OR_RETURN(layers->team_, ThreadTeam::create({.threads = threads, .pin = false}));
    layers->chain_ = std::make_unique<NativeLayerChain>(
        config, *layers->team_, tiles != nullptr ? *tiles : *available_tiles().front());
    return std::unique_ptr<mono::Executor>(std::move(layers));
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "native layers", "no memory for the views of layers");
  }
}

Status NativeLayers::run_layers(std::int64_t first, std::int64_t count, const bf16_t* hidden,
                                const bf16_t* residual, bf16_t* hidden_out, bf16_t* residual_out) {
  try {
    for (std::int64_t layer = first; layer < first + count; ++layer) {
      ML_RETURN_IF_ERROR(chain_->run_layer(layer, hidden, residual, hidden_out, residual_out));
      hidden = hidden_out;
      residual = residual_out;
    }
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "native layers", "no memory for the activations of a step"};
  }
  return {};
}

}  // namespace monolayer::cpu

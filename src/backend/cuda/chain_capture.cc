// What enters single layers, kept for a draft that reads it.
#include <algorithm>
#include <new>
#include <string>

#include "backend/cuda/chain.h"
#include "core/dtype.h"

namespace monolayer::cuda {

Status Chain::capture(std::span<const std::int64_t> kept) {
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] >= 0 && kept[i] < config_.num_layers && (i == 0 || kept[i] > kept[i - 1])) continue;
    return {Code::kInvalidArgument, "hidden states",
            "of layer " + std::to_string(kept[i]) + "; must ascend within " +
                std::to_string(config_.num_layers) + " layers"};
  }
  ML_CUDA(cudaSetDevice(options_.device));
  drop_graphs();  // they copy what was kept before
  kept_layers_.clear();
  kept_.clear();
  const std::size_t bytes = kept.size() * kMaxRows * static_cast<std::size_t>(config_.hidden_size) *
                            sizeof(std::uint16_t);
  ML_ASSIGN_OR_RETURN(kept_device_, DeviceBuffer::create(bytes, "CUDA hidden states"));
  kept_layers_.assign(kept.begin(), kept.end());
  return {};
}

Status Chain::keep_rows(std::int64_t layer) {
  const auto at = std::find(kept_layers_.begin(), kept_layers_.end(), layer);
  if (at == kept_layers_.end()) return {};
  const std::int64_t values = kMaxRows * config_.hidden_size;
  ML_CUDA(cudaMemcpyAsync(kept_device_.as<std::uint16_t>() + (at - kept_layers_.begin()) * values,
                          params().hidden, static_cast<std::size_t>(values) * sizeof(std::uint16_t),
                          cudaMemcpyDeviceToDevice, stream_));
  return {};
}

Status Chain::fetch_kept(std::int64_t first, std::int64_t rows) {
  if (kept_layers_.empty()) return {};
  const auto layers = static_cast<std::int64_t>(kept_layers_.size());
  const std::int64_t hidden = config_.hidden_size;
  kept_.resize(static_cast<std::size_t>(plan_.rows() * layers * hidden));
  ML_ASSIGN_OR_RETURN(const auto values,
                      download(kept_device_.as<std::uint16_t>(), layers * kMaxRows * hidden));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t l = 0; l < layers; ++l) {
      const std::uint16_t* from = values.data() + (l * kMaxRows + r) * hidden;
      std::transform(from, from + hidden, kept_.begin() + ((first + r) * layers + l) * hidden,
                     [](std::uint16_t v) { return bf16_to_f32(v); });
    }
  }
  return {};
}

}  // namespace monolayer::cuda

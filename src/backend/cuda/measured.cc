#include "backend/cuda/measured.h"

#include <cstddef>

#include "m3/config.h"

namespace monolayer::cuda {
namespace {

// One rank of four of MiniMax-M3 on one NVIDIA H200
// (bench/results/2026-12-01-cuda-long-contexts.json), and one of two by one device that stands in
// for both (2026-11-30-cuda-less-code.json): fused is ahead at every size measured, these are the
// largest.
constexpr cpu::FusedSpan kM3[] = {{8, 262144}, {16, 131072}};
constexpr cpu::FusedSpan kM3OfTwo[] = {{16, 131072}};
// Kernels for any shape: with the embedded model there the native graph is 5 % faster at one row.
constexpr cpu::FusedSpan kAny[] = {{16, 0}};

// Near enough to tell which figures hold: m3_layer() decides what runs.
bool m3_like(const m3::ModelConfig& config, const m3::ModelWeights& weights,
             const cpu::CacheOptions& caches, int ranks) {
  if (caches.kv != DType::kE4M3 || caches.index != DType::kE4M3) return false;
  const auto rank = m3::rank_shape(config, 0, ranks);
  if (!rank.ok() || m3::rank_config(config, *rank).group_size() != 16) return false;
  for (std::size_t i = 0; i < config.layers.size() && i < weights.layers.size(); ++i) {
    if (!config.layers[i].sparse_attention || !config.layers[i].moe) continue;
    const m3::LayerWeights& layer = weights.layers[i];
    return config.hidden_size == 6144 && config.head_dim == 128 && config.num_experts == 128 &&
           layer.q.format == WeightFormat::kFP8PerChannel && !layer.experts.empty() &&
           layer.experts.front().gate.format == WeightFormat::kMXFP4;
  }
  return false;
}

}  // namespace

std::span<const cpu::FusedSpan> fused_spans(const m3::ModelConfig& config,
                                            const m3::ModelWeights& weights,
                                            const cpu::CacheOptions& caches, int ranks) {
  if (m3_like(config, weights, caches, ranks)) {
    if (ranks == 2) return kM3OfTwo;
    return kM3;
  }
  return kAny;
}

}  // namespace monolayer::cuda

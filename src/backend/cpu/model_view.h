// The model's weights as the tile functions see them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/tiles.h"
#include "core/status.h"
#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer::cpu {

// Formats whose permuted activations have the same bytes share a kind.
inline constexpr int kActivationKinds = 4;
constexpr int activation_kind(Format format) {
  switch (format) {
    case Format::kF32:
      return 0;
    case Format::kBF16:
      return 1;
    case Format::kMXFP4:
      return 3;
    default:
      return 2;
  }
}
// A format of that kind.
constexpr Format kind_format(int kind) {
  constexpr Format kFormats[kActivationKinds] = {Format::kF32, Format::kBF16, Format::kE4M3,
                                                 Format::kMXFP4};
  return kFormats[kind];
}

// Stored bytes of one row, scales included: what reading it has to move.
constexpr std::int64_t stored_row_bytes(const Matrix& w) {
  std::int64_t scales = 0;
  if (w.format == Format::kMXFP8 || w.format == Format::kMXFP4) scales = w.cols / 32;
  if (w.format == Format::kE4M3 && w.scales != nullptr) scales = 4;
  switch (w.format) {
    case Format::kF32:
      return w.cols * 4 + scales;
    case Format::kBF16:
      return w.cols * 2 + scales;
    case Format::kMXFP4:
      return w.cols / 2 + scales;
    default:
      return w.cols + scales;
  }
}

using NormWeight = const std::uint16_t*;  // BF16, aligned

struct MlpView {
  Matrix gate, up, down;
  bool empty() const { return gate.rows == 0; }
};

struct LayerView {
  bool sparse = false, moe = false;
  NormWeight input_norm = nullptr, post_norm = nullptr, q_norm = nullptr, k_norm = nullptr;
  NormWeight index_q_norm = nullptr, index_k_norm = nullptr;
  Matrix q, k, v, o, index_q, index_k;
  MlpView dense;
  Matrix router;
  const float* router_bias = nullptr;  // null if there is none
  std::vector<MlpView> experts;
  MlpView shared;
};

// Matrices point into the checkpoint; the few vectors are copied, so that they are aligned. Copies
// of a view share them.
struct ModelView {
  Matrix embed, lm_head;
  NormWeight final_norm = nullptr;
  std::vector<LayerView> layers;
  std::vector<std::shared_ptr<std::byte[]>> vectors;
};

// kUnsupported, naming tensor and limit, where the kernels do not take what is stored.
Result<ModelView> view_model(const m3::ModelConfig& config, const m3::ModelWeights& weights);
// The limits that concern shapes alone; part of view_model.
Status check_shapes(const m3::ModelConfig& config);

}  // namespace monolayer::cpu

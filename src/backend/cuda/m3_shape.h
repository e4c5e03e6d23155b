// The shapes that the kernels compiled for MiniMax-M3 take: what device/known.cuh holds as
// constants.
#pragma once

#include <string>

#include "backend/cuda/params.h"

namespace monolayer::cuda {

// Tiles of one part of a row, by matrix: K / parts over the columns of a tile.
inline constexpr int kM3ProjectionTiles = 24;   // q, k, v, index: 6144 / 8 columns of FP8
inline constexpr int kM3OutputTiles = 32;       // 8192 / 8 of FP8
inline constexpr int kM3RouterTiles = 12;       // 6144 / 16 of BF16; of F32 three planes each
inline constexpr int kM3GateUpTiles = 12;       // 6144 / 8 of MXFP4
inline constexpr int kM3DownTiles = 6;          // 3072 / 8 of MXFP4
inline constexpr int kM3DenseGateUpTiles = 24;  // of dense layers: 6144 / 8 of FP8
inline constexpr int kM3HeadTiles = 24;         // 6144 / 8 of BF16
inline constexpr int kM3DenseDownTiles = 48;    // 12288 / 8 of FP8

// Why those kernels do not compute this layer: the first thing that differs, with both values; or
// an empty text. Every constant of theirs is compared: a layer that differs in one would be
// multiplied with a neighbour's weights, or wait for copies nobody sends.
std::string m3_refusal(const Shape& shape, const Layer& layer);
inline bool m3_layer(const Shape& shape, const Layer& layer) {
  return m3_refusal(shape, layer).empty();
}
// The same of a layer without experts and the kernels for M3's dense layers.
std::string m3_dense_refusal(const Shape& shape, const Layer& layer);

// Whether the kernels for M3's dense layers compute this head.
bool m3_head(const Shape& shape, const Matrix& head);

// Which kernels compute a layer.
enum class Kernels { kAny, kSparseM3, kDenseM3 };
inline Kernels kernels_of(const Shape& shape, const Layer& layer) {
  if (layer.moe != 0) return m3_layer(shape, layer) ? Kernels::kSparseM3 : Kernels::kAny;
  return m3_dense_refusal(shape, layer).empty() ? Kernels::kDenseM3 : Kernels::kAny;
}

}  // namespace monolayer::cuda

// What is known of a model when its kernels are compiled. The kernels are compiled once for any
// shape, once for MiniMax-M3's sparse layers (FP8 caches, FP8 projections, MXFP4 experts) and once
// for its dense ones (FP8 throughout): there most index arithmetic and every choice of format
// disappears, and with it the code that would have to be fetched again in every layer. All are the
// same source, but for the fused kernel of one row of sparse layers and attention of dense ones,
// and compute the same bits.
#pragma once

#include <type_traits>

#include "backend/cuda/m3_shape.h"
#include "backend/cuda/params.h"

// The units of the kernels for M3 define the first three, those for its dense layers the fourth.
#ifndef MONOLAYER_KERNELS
#define MONOLAYER_KERNELS generic
#define MONOLAYER_KERNELS_M3 false
#define MONOLAYER_KERNELS_ROWS 16
#endif
#ifndef MONOLAYER_KERNELS_DENSE
#define MONOLAYER_KERNELS_DENSE false
#endif

namespace monolayer::cuda::MONOLAYER_KERNELS {

inline constexpr bool kM3 = MONOLAYER_KERNELS_M3;          // its sparse layers
inline constexpr bool kDenseM3 = MONOLAYER_KERNELS_DENSE;  // its dense layers
inline constexpr bool kM3Sizes = kM3 || kDenseM3;
static_assert(!(kM3 && kDenseM3));
// Most rows of a step that these kernels take; those for one row know that it is one.
inline constexpr int kMostRows = MONOLAYER_KERNELS_ROWS;
inline constexpr bool kOneRow = kMostRows == 1;
inline constexpr bool kOnePass = kMostRows <= kColumns;
// Whether the fused kernel norms rows by parts of K (device/part_norms.cuh): projections and router
// are then dealt out part by part, the router's blocks leave normed rows in memory for the experts,
// and some of them choose the experts of all rows.
inline constexpr bool kNormsByPart = kM3 && kMostRows > kWordRows;
// Of its dense layers only the projections are.
inline constexpr bool kQkvByPart = kNormsByPart || (kDenseM3 && !kOneRow);

__device__ __forceinline__ int rows_of(const StepRows& s) { return kOneRow ? 1 : s.rows; }
// Quotient of what is not negative. Apart: divisions are much code.
__device__ __noinline__ int quotient(int n, int divisor) {
  return static_cast<int>(static_cast<unsigned>(n) / static_cast<unsigned>(divisor));
}
// Row of a task, of which every row has `per_row`; of one a head, whose number is a power of two
// for MiniMax-M3: a share of 64 or 4.
__device__ __forceinline__ int row_of_task(int task, int per_row) {
  return kOneRow ? 0 : quotient(task, per_row);
}
__device__ __forceinline__ int row_of_head_task(int task, int heads) {
  if (kOneRow) return 0;
  return kM3Sizes ? task >> 31 - __clz(heads) : quotient(task, heads);
}
__device__ __forceinline__ int red_columns_of(const Params& p) {
  return kM3 ? red_columns(kMostRows) : p.red_columns;
}
__device__ __forceinline__ int red_entries_of(const Params& p) {
  return kM3 ? red_entries(kMostRows) : p.red_entries;
}

__device__ __forceinline__ int hidden_of(const Shape& s) { return kM3Sizes ? 6144 : s.hidden; }
__device__ __forceinline__ int head_dim_of(const Shape& s) { return kM3Sizes ? 128 : s.head_dim; }
__device__ __forceinline__ int index_dim_of(const Shape& s) { return kM3Sizes ? 128 : s.index_dim; }
__device__ __forceinline__ int rotary_of(const Shape& s) { return kM3Sizes ? 64 : s.rotary; }
__device__ __forceinline__ int group_of(const Shape& s) { return kM3Sizes ? 16 : s.group; }
__device__ __forceinline__ int block_size_of(const Shape& s) {
  return kM3Sizes ? 128 : s.block_size;
}
__device__ __forceinline__ int topk_of(const Shape& s) { return kM3Sizes ? 16 : s.topk; }
__device__ __forceinline__ int chosen_of(const Shape& s) { return kM3Sizes ? 4 : s.chosen; }
__device__ __forceinline__ int experts_of(const Shape& s) { return kM3Sizes ? 128 : s.experts; }
__device__ __forceinline__ int kv_fp8_of(const Shape& s) { return kM3Sizes ? 1 : s.kv_fp8; }
__device__ __forceinline__ int index_fp8_of(const Shape& s) { return kM3Sizes ? 1 : s.index_fp8; }

// Kinds of matrices: format, tiles of a part and parts of an item where they are known; 0 or
// kAnyFormat: what the matrix says.
inline constexpr int kAnyFormat = -1;
inline constexpr int kUnscaled = -2;  // BF16, or F32 as planes of it: the matrix says which
template <int FORMAT, int TILES, int SPAN>
struct Kind {
  static constexpr int kFormat = kM3Sizes ? FORMAT : kAnyFormat;
  static constexpr int kTiles = TILES;
  static constexpr int kSpan = SPAN;
  static constexpr int kChunkTiles =
      !kM3Sizes || FORMAT == kAnyFormat                                  ? 0
      : FORMAT == kUnscaled || FORMAT == static_cast<int>(Format::kBF16) ? 6
                                                                         : 12;

  __device__ static Format format(const Matrix& m) {
    return kFormat < 0 ? m.format : static_cast<Format>(kFormat);
  }
  __device__ static int tiles(const Matrix& m) { return kM3Sizes && TILES > 0 ? TILES : m.tiles; }
  __device__ static int span(const Matrix& m) { return kM3Sizes && SPAN > 0 ? SPAN : m.span; }
  __device__ static int chunk_tiles(const Matrix& m) {
    return kChunkTiles > 0 ? kChunkTiles : m.chunk_tiles;
  }
  __device__ static int chunks(const Matrix& m) {
    if constexpr (kChunkTiles == 0 || TILES == 0 || SPAN == 0) {
      return m.chunks;
    } else {
      return (SPAN * TILES + kChunkTiles - 1) / kChunkTiles;
    }
  }
};
using AnyKind = Kind<kAnyFormat, 0, 0>;
using ProjectionKind = Kind<static_cast<int>(Format::kE4M3Half), kM3ProjectionTiles, 1>;
using OutputKind = Kind<static_cast<int>(Format::kE4M3Half), kM3OutputTiles, 1>;
using RouterKind = Kind<kUnscaled, 0, 1>;
// Of more rows than one a warp takes two parts and adds them: fewer items, each longer.
using SparseGateUpKind = Kind<static_cast<int>(Format::kMXFP4), kM3GateUpTiles, kOneRow ? 1 : 2>;
using SparseDownKind = Kind<static_cast<int>(Format::kMXFP4), kM3DownTiles, 2>;
using DenseGateUpKind = Kind<static_cast<int>(Format::kE4M3Half), kM3DenseGateUpTiles, 1>;
using DenseDownKind = Kind<static_cast<int>(Format::kE4M3Half), kM3DenseDownTiles, 1>;
using GateUpKind = std::conditional_t<kDenseM3, DenseGateUpKind, SparseGateUpKind>;
using DownKind = std::conditional_t<kDenseM3, DenseDownKind, SparseDownKind>;

using HeadKind = Kind<static_cast<int>(Format::kBF16), kM3HeadTiles, 1>;

// What a layer is.
__device__ __forceinline__ bool is_sparse(const Layer& layer) {
  return kM3 || (!kDenseM3 && layer.sparse != 0);
}
__device__ __forceinline__ bool has_experts(const Layer& layer) {
  return kM3 || (!kDenseM3 && layer.moe != 0);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

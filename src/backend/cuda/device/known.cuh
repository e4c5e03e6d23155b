// What is known of a model when its kernels are compiled. The kernels are compiled once for any
// shape and once for MiniMax-M3's (FP8 caches, FP8 projections, BF16 router, MXFP4 experts): there
// most index arithmetic and every choice of format disappears, and with it the code that would have
// to be fetched again in every layer. Both compute the same bits.
#pragma once

#include "backend/cuda/params.h"

// kernels_m3.cu defines both.
#ifndef MONOLAYER_KERNELS
#define MONOLAYER_KERNELS generic
#define MONOLAYER_KERNELS_M3 false
#endif

namespace monolayer::cuda::MONOLAYER_KERNELS {

inline constexpr bool kM3 = MONOLAYER_KERNELS_M3;

__device__ __forceinline__ int hidden_of(const Shape& s) {
  return kM3 ? 6144 : s.hidden;
}
__device__ __forceinline__ int head_dim_of(const Shape& s) {
  return kM3 ? 128 : s.head_dim;
}
__device__ __forceinline__ int index_dim_of(const Shape& s) {
  return kM3 ? 128 : s.index_dim;
}
__device__ __forceinline__ int rotary_of(const Shape& s) {
  return kM3 ? 64 : s.rotary;
}
__device__ __forceinline__ int group_of(const Shape& s) {
  return kM3 ? 16 : s.group;
}
__device__ __forceinline__ int block_size_of(const Shape& s) {
  return kM3 ? 128 : s.block_size;
}
__device__ __forceinline__ int topk_of(const Shape& s) {
  return kM3 ? 16 : s.topk;
}
__device__ __forceinline__ int chosen_of(const Shape& s) {
  return kM3 ? 4 : s.chosen;
}
__device__ __forceinline__ int experts_of(const Shape& s) {
  return kM3 ? 128 : s.experts;
}
__device__ __forceinline__ int kv_fp8_of(const Shape& s) {
  return kM3 ? 1 : s.kv_fp8;
}
__device__ __forceinline__ int index_fp8_of(const Shape& s) {
  return kM3 ? 1 : s.index_fp8;
}

// Formats of matrices; kAnyFormat: what the matrix says.
inline constexpr int kAnyFormat = -1;
inline constexpr int kProjection = kM3 ? static_cast<int>(Format::kE4M3) : kAnyFormat;
inline constexpr int kRouterFormat = kM3 ? static_cast<int>(Format::kBF16) : kAnyFormat;
inline constexpr int kExpert = kM3 ? static_cast<int>(Format::kMXFP4) : kAnyFormat;

// Every part of a row is made of whole tiles, so no padding lies between them.
__device__ __forceinline__ bool is_padded(const Matrix& m) {
  return !kM3 && m.parts * m.part_cols != m.cols;
}
// Experts' projections from and to the hidden dimension.
__device__ __forceinline__ int wide_parts(const Matrix& m) { return kM3 ? 8 : m.parts; }

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

// Tiles of a matrix of each format, out of the ring, times the column of activations that a lane
// reads, or two.
#pragma once

#include "backend/cuda/device/context.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

template <typename T>
__device__ __forceinline__ T value_at(int offset) {
  return *reinterpret_cast<const T*>(memory() + offset);
}

// What a lane needs of one tile, fetched before its use: one tile ahead, E4M3 four.
struct TileMXFP4 {
  uint4 w, b0, b1;
  std::uint32_t scales;

  // `tile`, `scale`: offsets in shared memory of this lane's part; activations at `x`, `stride`
  // bytes from one 32 columns to the next: 64, or 0 for a column without a row.
  __device__ __forceinline__ void fetch(int tile, int scale, int x, int stride) {
    w = value_at<uint4>(tile);
    scales = value_at<std::uint32_t>(scale);
    b0 = value_at<uint4>(x);
    b1 = value_at<uint4>(x + stride);
  }
  __device__ __forceinline__ void add(float (&acc)[4]) const {
    float f[4];
    decode_scales(scales, f);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      std::uint32_t a0[4];
      std::uint32_t a1[4];
      decode_e2m1(g != 0 ? w.z : w.x, a0);
      decode_e2m1(g != 0 ? w.w : w.y, a1);
      const uint4 b = g != 0 ? b1 : b0;
      float q[4] = {};
      mma(q, a0[0], a0[1], a0[2], a0[3], b.x, b.y);
      mma(q, a1[0], a1[1], a1[2], a1[3], b.z, b.w);
      acc[0] = fmaf(f[g], q[0], acc[0]);
      acc[1] = fmaf(f[g], q[1], acc[1]);
      acc[2] = fmaf(f[2 + g], q[2], acc[2]);
      acc[3] = fmaf(f[2 + g], q[3], acc[3]);
    }
  }
};
struct TileMXFP8 {
  uint4 w, b;
  std::uint32_t scales;

  __device__ __forceinline__ void fetch(int tile, int scale, int x) {
    w = value_at<uint4>(tile);
    scales = value_at<std::uint16_t>(scale);
    b = value_at<uint4>(x);
  }
  __device__ __forceinline__ void add(float (&acc)[4]) const {
    std::uint32_t a[8];
    decode_e4m3_pairs(w.x, a[0], a[2]);
    decode_e4m3_pairs(w.y, a[1], a[3]);
    decode_e4m3_pairs(w.z, a[4], a[6]);
    decode_e4m3_pairs(w.w, a[5], a[7]);
    float q[4] = {};
    mma(q, a[0], a[1], a[2], a[3], b.x, b.y);
    mma(q, a[4], a[5], a[6], a[7], b.z, b.w);
    const float low = __uint_as_float(scales << 23 & 0x7F800000U);
    const float high = __uint_as_float(scales << 15 & 0x7F800000U);
    acc[0] = fmaf(low, q[0], acc[0]);
    acc[1] = fmaf(low, q[1], acc[1]);
    acc[2] = fmaf(high, q[2], acc[2]);
    acc[3] = fmaf(high, q[3], acc[3]);
  }
};
template <bool HALF>
struct TileE4M3 {
  uint4 w, b;

  __device__ __forceinline__ void fetch(std::uint32_t tile, std::uint32_t x) {
    w = load_shared(tile);
    b = load_shared(x);
  }
  __device__ __forceinline__ void add(float (&acc)[2][4]) const {
    std::uint32_t a[8];
    const auto decode = [](std::uint32_t from, std::uint32_t& low, std::uint32_t& high) {
      if constexpr (HALF) {
        halves_of_e4m3(from, low, high);
      } else {
        decode_e4m3_pairs(from, low, high);
      }
    };
    decode(w.x, a[0], a[2]);
    decode(w.y, a[1], a[3]);
    decode(w.z, a[4], a[6]);
    decode(w.w, a[5], a[7]);
    if constexpr (HALF) {
      mma_half(acc[0], a[0], a[1], a[2], a[3], b.x, b.y);
      mma_half(acc[1], a[4], a[5], a[6], a[7], b.z, b.w);
    } else {
      mma(acc[0], a[0], a[1], a[2], a[3], b.x, b.y);
      mma(acc[1], a[4], a[5], a[6], a[7], b.z, b.w);
    }
  }
};

// n tiles, one after the other, the next one fetched before the last is used.
__device__ __forceinline__ void tiles_mxfp4(int tile, int scale, int x, int stride, int n,
                                            float (&acc)[4]) {
  TileMXFP4 even;
  TileMXFP4 odd;
  even.fetch(tile, scale, x, stride);
#pragma unroll 1
  for (; n > 1; n -= 2) {
    odd.fetch(tile + 544, scale + 544, x + 2 * stride, stride);
    even.add(acc);
    tile += 2 * 544;
    scale += 2 * 544;
    x += 4 * stride;
    if (n > 2) even.fetch(tile, scale, x, stride);
    odd.add(acc);
  }
  if (n > 0) even.add(acc);
}
__device__ __forceinline__ void tiles_mxfp8(int tile, int scale, int x, int stride, int n,
                                            float (&acc)[4]) {
  TileMXFP8 even;
  TileMXFP8 odd;
  even.fetch(tile, scale, x);
#pragma unroll 1
  for (; n > 1; n -= 2) {
    odd.fetch(tile + 528, scale + 528, x + stride);
    even.add(acc);
    tile += 2 * 528;
    scale += 2 * 528;
    x += 2 * stride;
    if (n > 2) even.fetch(tile, scale, x);
    odd.add(acc);
  }
  if (n > 0) even.add(acc);
}
// Four tiles ahead: loads that the loop carries are not moved down to their use.
template <bool HALF>
__device__ __forceinline__ void tiles_e4m3(std::uint32_t tile, std::uint32_t x, int stride, int n,
                                           float (&acc)[2][4]) {
  constexpr int kAhead = 4;
  TileE4M3<HALF> t[kAhead];
  const auto fetch = [&](TileE4M3<HALF>& to) {
    to.fetch(tile, x);
    tile += 512;
    x += stride;
  };
  if (n >= kAhead) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) fetch(t[k]);
#pragma unroll 1
    for (n -= kAhead; n >= kAhead; n -= kAhead) {
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        t[k].add(acc);
        fetch(t[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) t[k].add(acc);
  }
#pragma unroll 1
  for (; n > 0; --n) {
    fetch(t[0]);
    t[0].add(acc);
  }
}
// The same for two columns a lane, eight apart in what products take: a weight is decoded once.
__device__ __forceinline__ void tiles_e4m3_wide(std::uint32_t tile, std::uint32_t x, int x_stride,
                                                std::uint32_t y, int y_stride, int n,
                                                float (&acc)[2][2][4]) {
#pragma unroll 2
  for (int i = 0; i < n; ++i, tile += 512, x += x_stride, y += y_stride) {
    const uint4 w = load_shared(tile);
    const uint4 b = load_shared(x);
    const uint4 d = load_shared(y);
    std::uint32_t a[8];
    halves_of_e4m3(w.x, a[0], a[2]);
    halves_of_e4m3(w.y, a[1], a[3]);
    halves_of_e4m3(w.z, a[4], a[6]);
    halves_of_e4m3(w.w, a[5], a[7]);
    mma_half(acc[0][0], a[0], a[1], a[2], a[3], b.x, b.y);
    mma_half(acc[1][0], a[0], a[1], a[2], a[3], d.x, d.y);
    mma_half(acc[0][1], a[4], a[5], a[6], a[7], b.z, b.w);
    mma_half(acc[1][1], a[4], a[5], a[6], a[7], d.z, d.w);
  }
}
__device__ __forceinline__ void tiles_bf16_wide(std::uint32_t tile, std::uint32_t x, int x_stride,
                                                std::uint32_t y, int y_stride, int n,
                                                float (&acc)[2][2][4]) {
#pragma unroll 2
  for (int i = 0; i < n; ++i, tile += 1024, x += x_stride, y += y_stride) {
    const uint4 w0 = load_shared(tile);
    const uint4 w1 = load_shared(tile + 512);
    const uint4 b = load_shared(x);
    const uint4 d = load_shared(y);
    mma(acc[0][0], w0.x, w0.y, w0.z, w0.w, b.x, b.y);
    mma(acc[1][0], w0.x, w0.y, w0.z, w0.w, d.x, d.y);
    mma(acc[0][0], w1.x, w1.y, w1.z, w1.w, b.z, b.w);
    mma(acc[1][0], w1.x, w1.y, w1.z, w1.w, d.z, d.w);
  }
}
// `planes` tiles of the same columns follow each other.
__device__ __forceinline__ void tiles_bf16(int tile, int x, int stride, int n, int planes,
                                           float (&acc)[4]) {
#pragma unroll 2
  for (int i = 0; i < n; ++i) {
    const uint4 w0 = value_at<uint4>(tile + i * 1024);
    const uint4 w1 = value_at<uint4>(tile + i * 1024 + 512);
    const int at = planes == 1 ? i : i * 43 >> 7;  // a third, below 64
    const uint4 v = value_at<uint4>(x + at * stride);
    mma(acc, w0.x, w0.y, w0.z, w0.w, v.x, v.y);
    mma(acc, w1.x, w1.y, w1.z, w1.w, v.z, v.w);
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

// Products of nine to sixteen normed rows of MiniMax-M3 with matrices whose K is its hidden size:
// one pass over the weights, though shared memory holds only half of the rows' columns. The sums of
// the first half of K wait for those of the second, as in the tree over all parts.
#pragma once

#include "backend/cuda/device/part_norms.cuh"
#include "backend/cuda/device/rows.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

inline constexpr int kHalfColumns = kMaxHidden / 2;
static_assert(kHalfRowBytes == kHalfColumns * 2 + 64 && kHalfRowBytes % 128 == 64,
              "rows lie in different banks");

// norm_factor() of a row, by one warp, from the same sums in the same order.
__device__ __forceinline__ float factor_of_row(const Context& c, const std::uint16_t* row) {
  constexpr int kAtOnce = kWarps / 2;
  const auto* at = reinterpret_cast<const uint2*>(row) + c.lane;
  float sum[kWarps];  // a lane's share of what each warp would have
#pragma unroll
  for (int first = 0; first < kWarps; first += kAtOnce) {
    uint2 v[kAtOnce][kNormParts];
#pragma unroll
    for (int w = 0; w < kAtOnce; ++w) {
#pragma unroll
      for (int k = 0; k < kNormParts; ++k) v[w][k] = __ldcg(at + (first + w) * 32 + k * kThreads);
    }
#pragma unroll
    for (int w = 0; w < kAtOnce; ++w) {
      sum[first + w] = 0;
#pragma unroll
      for (int k = 0; k < kNormParts; ++k)
        sum[first + w] = squares(unpack_four(v[w][k]), sum[first + w]);
    }
  }
  // Sums over lanes in halves, of half as many warps at each step; lanes 2 w and 2 w + 1 end up
  // with those of warp w.
#pragma unroll
  for (int d = 16; d > 1; d >>= 1) {
    const bool high = (c.lane & d) != 0;
#pragma unroll
    for (int w = 0; w < d / 2; ++w) {
      const float mine = high ? sum[w + d / 2] : sum[w];
      const float other = high ? sum[w] : sum[w + d / 2];
      sum[w] = mine + __shfl_xor_sync(0xFFFFFFFFU, other, d);
    }
  }
  float total = sum[0] + __shfl_xor_sync(0xFFFFFFFFU, sum[0], 1);
#pragma unroll
  for (int d = 2; d < 32; d <<= 1) total += __shfl_xor_sync(0xFFFFFFFFU, total, d);
  return norm_factor(total, kMaxHidden, c.p.shape.eps);
}

inline constexpr int kHalfVectors = kHalfColumns / 8;
// Half of a row on its way into x, by the warp of that number.
__device__ __forceinline__ void start_half(const Context& c, const std::uint16_t* row, int half) {
  const auto* from = reinterpret_cast<const uint4*>(row) + half * kHalfVectors;
#pragma unroll 4
  for (int i = c.lane; i < kHalfVectors; i += 32)
    copy_async(c.x + c.warp * kHalfRowBytes + i * 16, from + i);
}
// Norms it as a product with m takes it; `out`, if given, takes it as it is.
__device__ __forceinline__ void norm_half(const Context& c, const Matrix& m,
                                          const std::uint16_t* weight, int half, float factor,
                                          std::uint16_t* out) {
  const bool halves = m.format == Format::kE4M3Half;
  const float staged = staged_factor(halves, factor, m.x_scale);
  const auto* gains = reinterpret_cast<const uint4*>(weight) + half * kHalfVectors;
  auto* const x = reinterpret_cast<uint4*>(c.x + c.warp * kHalfRowBytes);
  wait_copies();  // each lane its own
#pragma unroll 4
  for (int i = c.lane; i < kHalfVectors; i += 32) {
    const uint4 w = __ldg(gains + i);
    const uint4 v = x[i];
    const auto normed = [&](float by) -> uint4 {
      const uint2 low = scale_by_norm(unpack_four({v.x, v.y}), gains_of({w.x, w.y}), by);
      const uint2 high = scale_by_norm(unpack_four({v.z, v.w}), gains_of({w.z, w.w}), by);
      return {low.x, low.y, high.x, high.y};
    };
    uint4 as_staged = normed(staged);
    if (halves) {
      const uint2 low = halves_of(uint2{as_staged.x, as_staged.y});
      const uint2 high = halves_of(uint2{as_staged.z, as_staged.w});
      as_staged = {low.x, low.y, high.x, high.y};
    }
    x[i] = as_staged;
    if (out != nullptr) reinterpret_cast<uint4*>(out)[half * kHalfVectors + i] = normed(factor);
  }
}

// each(run, x, half): this block's row groups times half of K, once x, both columns of a lane, is
// staged. `NORM`: whose sums of squares blocks hand to each other, kPostNorm; 0: every block makes
// all. The rest as in stage_norm().
template <int NORM, typename E>
__device__ __forceinline__ void by_halves(Context& c, const Matrix& m, const std::uint16_t* from,
                                          const std::uint16_t* weight, int n, const Rows& row_of,
                                          std::uint16_t* out, E&& each) {
  const std::int64_t at = static_cast<std::int64_t>(row_of(min(c.warp, n - 1))) * kMaxHidden;
  const bool there = c.warp < n;
  float factor = 0;
  if (NORM != 0) hand_over_squares(c, NORM, from);
  const int own = c.lane >> 2;
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    sync(c);  // whoever still reads x or sums
    if (there) {
      start_half(c, from + at, half);
      if (half == 0)
        factor = NORM != 0 ? take_norm_factor(NORM, c.warp) : factor_of_row(c, from + at);
      norm_half(c, m, weight, half, factor, out != nullptr ? out + at : nullptr);
    }
    sync(c);
    each(half_share_of(m, half, c.block, c.blocks),
         WideColumn{column(c, kHalfRowBytes, own, own < n),
                    column(c, kHalfRowBytes, own + kColumns, own + kColumns < n)},
         half);
  }
}

// put(row group, row of it, row, sum over a half, whether it is the second): the same thread for
// both halves, whole warps, whether or not there is such a row.
template <typename K, int NORM, typename P>
__device__ __forceinline__ void product_by_halves(Context& c, const Matrix& m,
                                                  const std::uint16_t* from,
                                                  const std::uint16_t* weight, int n,
                                                  const Rows& row_of, std::uint16_t* out, P&& put) {
  static_assert(red_columns(kMaxRows) == kColumns);
  constexpr int kEntries = 2 * kHalfParts;
  by_halves<NORM>(c, m, from, weight, n, row_of, out,
                  [&](const Run& run, const WideColumn& x, int half) {
#pragma unroll 1
                    for (int first = 0; first < run.units; first += run.batch) {
                      const int count = min(run.batch, run.units - first);
                      if (first > 0) sync(c);  // whoever still reads sums
                      item_products<K>(
                          c, run, first, count, [&](int) { return x; },
                          [&](int unit, int part, const WideSums& v) {
                            const int entry = (unit - first) * kEntries + part;
                            keep_sums(c, c.red, entry, v.low);
                            keep_sums(c, c.red, entry + kHalfParts, v.high);
                          });
                      sync(c);
#pragma unroll 1
                      for (int at = c.thread; at < count * 16 * kMaxRows; at += kThreads) {
                        const int i = at & 15;
                        const int row = at >> 4 & (kMaxRows - 1);
                        const int unit = at >> 8;
                        const int entry = unit * kEntries + row / kColumns * kHalfParts;
                        put(run.begin + first + unit, i, row,
                            tree_of_parts(c.red + (entry * 16 + i) * kColumns + row % kColumns,
                                          16 * kColumns, kHalfParts),
                            half == 1);
                      }
                    }
                  });
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

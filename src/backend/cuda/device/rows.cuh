// Activation rows: the norm, copies into shared memory, the shared exponential.
#pragma once

#include "backend/cpu/tiles_exp.h"
#include "backend/cuda/device/gemv.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// The exponential of docs/numerics.md.
__device__ __forceinline__ float exponential(float x) {
  namespace k = cpu::exp_constants;
  x = x < k::kLow ? k::kLow : x;
  x = x > k::kHigh ? k::kHigh : x;
  const float rounded = fmaf(x, k::kLog2E, k::kRound);
  const float n = rounded - k::kRound;
  float r = fmaf(n, -k::kLn2High, x);
  r = fmaf(n, -k::kLn2Low, r);
  float q = fmaf(k::kQ4, r, k::kQ3);
  q = fmaf(q, r, k::kQ2);
  q = fmaf(q, r, k::kQ1);
  q = fmaf(q, r, k::kQ0);
  const float p = fmaf(r * r, q, r) + 1.0F;
  const int power = __float_as_int(rounded) - __float_as_int(k::kRound);
  const int first = power >> 1;
  const auto power_of_two = [](int e) {
    return __uint_as_float(static_cast<std::uint32_t>(e + 127) << 23);
  };
  return (p * power_of_two(first)) * power_of_two(power - first);
}
// Apart: much code, and nowhere in a long loop.
__device__ __noinline__ float sigmoid(float x) { return __frcp_rn(1.0F + exponential(-x)); }

__device__ __forceinline__ float row_factor(const float* scales, int row) {
  return scales != nullptr ? __ldg(scales + row) : 1.0F;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xFFFFFFFFU, v, d);
  return v;
}

// A NaN of this lane stays; one of another lane does not replace a number.
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) {
    const float other = __shfl_xor_sync(0xFFFFFFFFU, v, d);
    v = v < other ? other : v;
  }
  return v;
}

// Numbers in the order of their values, both zeros alike.
__device__ __forceinline__ std::uint32_t order_of(float v) {
  const std::uint32_t bits = __float_as_uint(v + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// Padding columns meet zero weights and must be finite.
__device__ __forceinline__ void clear_rows(unsigned char* x, const Layout& layout, int rows) {
  if (!layout.padded()) return;
  for (int i = static_cast<int>(threadIdx.x); i < rows * layout.row_bytes / 16; i += kThreads) {
    reinterpret_cast<uint4*>(x)[i] = {0, 0, 0, 0};
  }
  sync();
}

// Four columns of a row: what a thread of the norm works on at once.
__device__ __forceinline__ float squares(uint2 v, float sum) {
  const float2 low = unpack_bf16(v.x);
  const float2 high = unpack_bf16(v.y);
  sum = fmaf(low.x, low.x, sum);
  sum = fmaf(low.y, low.y, sum);
  sum = fmaf(high.x, high.x, sum);
  return fmaf(high.y, high.y, sum);
}
// (x * factor) * (1 + w), rounded to BF16.
__device__ __forceinline__ uint2 scale_by_norm(uint2 v, uint2 w, float factor) {
  const auto pair = [factor](std::uint32_t a, std::uint32_t b) {
    const float2 f = unpack_bf16(a);
    const float2 g = unpack_bf16(b);
    return pack_bf16((f.x * factor) * (1.0F + g.x), (f.y * factor) * (1.0F + g.y));
  };
  return {pair(v.x, w.x), pair(v.y, w.y)};
}
__device__ __forceinline__ uint2 half_by_norm(uint2 v, uint2 w, float factor, float x_scale) {
  const auto pair = [factor, x_scale](std::uint32_t a, std::uint32_t b) {
    const float2 f = unpack_bf16(a);
    const float2 g = unpack_bf16(b);
    return pack_half((f.x * factor) * (1.0F + g.x), (f.y * factor) * (1.0F + g.y), x_scale);
  };
  return {pair(v.x, w.x), pair(v.y, w.y)};
}
// As products with a matrix take it: BF16 scaled by a power of two, which commutes with every
// rounding, or FP16. `factor` of norm_factor().
__device__ __forceinline__ uint2 staged_by_norm(bool half, uint2 v, uint2 w, float factor,
                                                float x_scale) {
  return half ? half_by_norm(v, w, factor, x_scale)
              : scale_by_norm(v, w, factor * kActivationScale);
}
__device__ __forceinline__ float norm_factor(float squares, int n, float eps) {
  return __frcp_rn(__fsqrt_rn(__fdiv_rn(squares, static_cast<float>(n)) + eps));
}

// Normalises rows row_of(0..n-1) of `from` [*, hidden] into staged rows 0..n-1. The sum of squares:
// thread t takes columns 4 t + 2048 k in ascending order, then lanes in halves, then the sixteen
// warps in the fixed tree. `out`, if given, takes the unscaled rows too. All rows are fetched at
// once.
inline constexpr int kNormParts = (kMaxHidden + kThreads * 4 - 1) / (kThreads * 4);  // of a thread
struct Rows {
  int first;
  const std::int32_t* list;  // null: rows first, first + 1, ...
  __device__ int operator()(int i) const { return list != nullptr ? list[first + i] : first + i; }
};
// The same where no padding lies between parts, up to two rows at a time: they stay in registers,
// and every warp makes the factors itself. More would be more code. load(first, v): rows first and
// on, as far as there are.
inline constexpr int kNormsTogether = kOneRow ? 1 : 2;
using NormRows = uint2[kNormsTogether][kNormParts];
template <typename L>
__device__ __forceinline__ void norm_in_registers(L&& load, const std::uint16_t* weight,
                                                  const Matrix& m, int n, const Rows& row_of,
                                                  std::uint16_t* out) {
  const bool half = m.format == Format::kE4M3Half;
  const float x_scale = m.x_scale;
  const int row_bytes = m.row_bytes;
  constexpr int kTogether = kNormsTogether;
  Shared& s = shared();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int hidden = hidden_of(s.params.shape);
  const auto* scale = reinterpret_cast<const uint2*>(weight) + thread;
  uint2 w[kNormParts];
#pragma unroll
  for (int k = 0; k < kNormParts; ++k) w[k] = __ldg(scale + k * kThreads);
  unsigned char* x = memory() + kFixedBytes + s.params.slots * kSlotBytes + thread * 8;
#pragma unroll 1
  for (int first = 0; first < n; first += kTogether) {
    NormRows v = {};
    float sum[kTogether] = {};
    load(first, v);
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
#pragma unroll
      for (int k = 0; k < kNormParts; ++k) sum[r] = squares(v[r][k], sum[r]);
      sum[r] = warp_sum(sum[r]);
      if (lane == 0) s.sums[first + r][thread / 32] = sum[r];
    }
    sync();
    float factor[(kTogether + 1) / 2];
#pragma unroll
    for (int k = 0; k < (kTogether + 1) / 2; ++k) {
      // Half a warp a row.
      const int row = first + (kOneRow ? 0 : 2 * k + lane / kWarps);
      float total = s.sums[row][lane % kWarps];
#pragma unroll
      for (int d = 1; d < kWarps; d <<= 1) total += __shfl_xor_sync(0xFFFFFFFFU, total, d);
      factor[k] = norm_factor(total, hidden, s.params.shape.eps);
    }
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      const float f = __shfl_sync(0xFFFFFFFFU, factor[r / 2], r % 2 * kWarps);
      if (first + r >= n) continue;
      auto* to = reinterpret_cast<uint2*>(x + (first + r) * row_bytes);
      auto* copy =
          reinterpret_cast<uint2*>(out + static_cast<std::int64_t>(row_of(first + r)) * hidden) +
          thread;
#pragma unroll
      for (int k = 0; k < kNormParts; ++k) {
        const uint2 staged = staged_by_norm(half, v[r][k], w[k], f, x_scale);
        to[k * kThreads] = staged;
        if (!kOnePass && out != nullptr) copy[k * kThreads] = staged;
      }
    }
  }
  sync();
}
__device__ __noinline__ void stage_norm(const Matrix& m, const std::uint16_t* from,
                                        const std::uint16_t* weight, int n, Rows row_of,
                                        std::uint16_t* out) {
  if constexpr (kM3) {
    if (!kOnePass) sync();  // whoever still reads x
    norm_in_registers(
        [&](int first, NormRows& v) {
#pragma unroll
          for (int r = 0; r < kNormsTogether; ++r) {
            if (first + r >= n) continue;
            const auto* row =
                reinterpret_cast<const uint2*>(from + static_cast<std::int64_t>(row_of(first + r)) *
                                                          hidden_of(shared().params.shape)) +
                threadIdx.x;
#pragma unroll
            for (int k = 0; k < kNormParts; ++k) v[r][k] = __ldcg(row + k * kThreads);
          }
        },
        weight, m, n, row_of, out);
    return;
  }
  const Layout layout(m);
  const bool half = m.format == Format::kE4M3Half;
  Shared& s = shared();
  unsigned char* x = memory() + kFixedBytes + s.params.slots * kSlotBytes;
  const int thread = static_cast<int>(threadIdx.x);
  const int hidden = hidden_of(s.params.shape);
  const int parts = hidden / 4;
  uint2 w[kNormParts];
  int place[kNormParts];
#pragma unroll
  for (int k = 0; k < kNormParts; ++k) {
    const int at = thread + k * kThreads;
    place[k] = at < parts ? layout.at(at * 4) : -1;
    if (at < parts) w[k] = __ldg(reinterpret_cast<const uint2*>(weight) + at);
  }
  sync();  // whoever still reads x
  clear_rows(x, layout, n);
#pragma unroll 1
  for (int r = 0; r < n; ++r) {
    const auto* row =
        reinterpret_cast<const uint4*>(from) + static_cast<std::int64_t>(row_of(r)) * (hidden / 8);
#pragma unroll 1
    for (int i = thread; i < hidden / 8; i += kThreads)
      copy_async(x + r * layout.row_bytes + layout.at(i * 8), row + i);
  }
  wait_copies();
  sync();
#pragma unroll 1
  for (int r = 0; r < n; ++r) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kNormParts; ++k) {
      if (place[k] < 0) continue;
      sum = squares(*reinterpret_cast<const uint2*>(x + r * layout.row_bytes + place[k]), sum);
    }
    sum = warp_sum(sum);
    if (thread % 32 == 0) s.sums[r][thread / 32] = sum;
  }
  sync();
  if (thread / 32 < n) {
    float total = s.sums[thread / 32][thread % kWarps];
#pragma unroll
    for (int d = 1; d < kWarps; d <<= 1) total += __shfl_xor_sync(0xFFFFFFFFU, total, d);
    if (thread % 32 == 0) {
      s.factor[thread / 32] = norm_factor(total, hidden, s.params.shape.eps);
    }
  }
  sync();
#pragma unroll 1
  for (int r = 0; r < n; ++r) {
    const float factor = s.factor[r];
#pragma unroll
    for (int k = 0; k < kNormParts; ++k) {
      if (place[k] < 0) continue;
      auto* at = reinterpret_cast<uint2*>(x + r * layout.row_bytes + place[k]);
      const uint2 v = *at;
      *at = staged_by_norm(half, v, w[k], factor, m.x_scale);
      if (out != nullptr) {
        reinterpret_cast<uint2*>(
            out)[static_cast<std::int64_t>(row_of(r)) * parts + thread + k * kThreads] =
            scale_by_norm(v, w[k], factor);
      }
    }
  }
  sync();
}

// Copies rows at(0..n-1), layout.cols values each, stored scaled as they are staged, into staged
// rows first..first+n-1 of row_bytes. The caller waits for the copies and synchronises around it.
template <typename A>
__device__ __forceinline__ void stage_rows(Context& c, const Layout& layout, int row_bytes,
                                           int first, int n, A&& at) {
  const int vectors = layout.cols / 8;
  const std::uint32_t magic = divider(vectors);
#pragma unroll 1
  for (int i = c.thread; i < n * vectors; i += kThreads) {
    const int row = static_cast<int>(__umulhi(static_cast<std::uint32_t>(i), magic));
    const int vector = i - row * vectors;
    copy_async(c.x + (first + row) * row_bytes + layout.at(vector * 8), at(row) + vector * 8);
  }
}

// More rows than a product takes at once: blocks norm a row each, for all to stage. Only with so
// many blocks that each stages at most two parts of K (product_by_part): all rows of those fit.
__device__ __forceinline__ bool norms_apart() {
  return kM3 && !kOnePass && rows_of(shared().step) > kColumns && blocks_of_rank() >= kRouterParts;
}
// Not by stage_norm(), which is more code, run by few blocks and so fetched anew in every layer;
// the same sums and roundings.
__device__ __noinline__ void norm_rows(const Matrix& m, const std::uint16_t* from,
                                       const std::uint16_t* weight) {
  const Context c = open_context({});
  const int hidden = hidden_of(c.p.shape);
  const bool half = m.format == Format::kE4M3Half;
  const auto* scale = reinterpret_cast<const uint2*>(weight) + c.thread;
  uint2 w[kNormParts];
#pragma unroll
  for (int k = 0; k < kNormParts; ++k) w[k] = __ldg(scale + k * kThreads);
#pragma unroll 1
  for (int row = c.block; row < c.rows(); row += c.blocks) {
    const std::int64_t at = static_cast<std::int64_t>(row) * hidden;
    const auto* own = reinterpret_cast<const uint2*>(from + at) + c.thread;
    uint2 v[kNormParts];
#pragma unroll
    for (int k = 0; k < kNormParts; ++k) v[k] = __ldcg(own + k * kThreads);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kNormParts; ++k) sum = squares(v[k], sum);
    sum = warp_sum(sum);
    float* const sums = c.s.sums[row / c.blocks & 1];
    if (c.lane == 0) sums[c.warp] = sum;
    sync(c);
    float total = sums[c.lane % kWarps];
#pragma unroll
    for (int d = 1; d < kWarps; d <<= 1) total += __shfl_xor_sync(0xFFFFFFFFU, total, d);
    const float factor = norm_factor(total, hidden, c.p.shape.eps);
    auto* const to = reinterpret_cast<uint2*>(c.p.normed + at) + c.thread;
#pragma unroll
    for (int k = 0; k < kNormParts; ++k)
      to[k * kThreads] = staged_by_norm(half, v[k], w[k], factor, m.x_scale);
  }
}
// Rows row_of(0..n-1) of `from`, normed, for a product with m.
__device__ __forceinline__ void stage_normed(Context& c, const Matrix& m, const std::uint16_t* from,
                                             const std::uint16_t* weight, int n,
                                             const Rows& row_of) {
  if (!c.normed) {
    stage_norm(m, from, weight, n, row_of, nullptr);
    return;
  }
  sync(c);  // whoever still reads x
  stage_rows(c, Layout(m), m.row_bytes, 0, n, [&](int r) {
    return c.p.normed + static_cast<std::int64_t>(row_of(r)) * hidden_of(c.p.shape);
  });
  wait_copies();
  sync(c);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

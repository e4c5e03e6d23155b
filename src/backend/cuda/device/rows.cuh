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
__device__ __forceinline__ float4 unpack_four(uint2 v) {
  const float2 low = unpack_bf16(v.x);
  const float2 high = unpack_bf16(v.y);
  return {low.x, low.y, high.x, high.y};
}
__device__ __forceinline__ float squares(float4 v, float sum) {
  sum = fmaf(v.x, v.x, sum);
  sum = fmaf(v.y, v.y, sum);
  sum = fmaf(v.z, v.z, sum);
  return fmaf(v.w, v.w, sum);
}
// 1 + w of four columns.
__device__ __forceinline__ float4 gains_of(uint2 w) {
  const float4 f = unpack_four(w);
  return {1.0F + f.x, 1.0F + f.y, 1.0F + f.z, 1.0F + f.w};
}
// (x * factor) * (1 + w), rounded to BF16.
__device__ __forceinline__ uint2 scale_by_norm(float4 v, float4 gains, float factor) {
  return {pack_bf16((v.x * factor) * gains.x, (v.y * factor) * gains.y),
          pack_bf16((v.z * factor) * gains.z, (v.w * factor) * gains.w)};
}
// Products take normed rows as BF16 or FP16 times a power of two, which commutes with every
// rounding: it goes into the factor, and BF16 is then what scale_by_norm() makes.
__device__ __forceinline__ float staged_factor(bool half, float factor, float x_scale) {
  return factor * (half ? x_scale : kActivationScale);
}
// Exact but for the smallest values (Matrix::x_scale).
__device__ __forceinline__ uint2 halves_of(uint2 v) {
  const auto pair = [](std::uint32_t of) {
    const float2 f = unpack_bf16(of);
    const __half2 h = __floats2half2_rn(f.x, f.y);
    return *reinterpret_cast<const std::uint32_t*>(&h);
  };
  return {pair(v.x), pair(v.y)};
}
__device__ __forceinline__ float factor_of_mean(float mean, float eps) {
  return __frcp_rn(__fsqrt_rn(mean + eps));
}
__device__ __forceinline__ float norm_factor(float squares, int n, float eps) {
  return factor_of_mean(__fdiv_rn(squares, static_cast<float>(n)), eps);
}

// Normalises rows row_of(0..n-1) of `from` [*, hidden] into staged rows 0..n-1. The sum of squares:
// thread t takes columns 4 t + 2048 k in ascending order, then lanes in halves, then the sixteen
// warps in the fixed tree. `out`, if given, takes the unscaled rows too, but not from the kernels
// for M3, whose head nobody asks for them up to eight rows. All rows are fetched at once.
inline constexpr int kNormParts = (kMaxHidden + kThreads * 4 - 1) / (kThreads * 4);  // of a thread
struct Rows {
  int first;
  const std::int32_t* list;  // null: rows first, first + 1, ...
  __device__ int operator()(int i) const { return list != nullptr ? list[first + i] : first + i; }
};
// A thread's parts of a row, normed, as products take them; `to`: where its first one belongs.
// `factor` of staged_factor(), gain(k): gains_of() part k.
template <typename V, typename G>
__device__ __forceinline__ void store_normed(V&& value, G&& gain, bool half, float factor,
                                             uint2* to) {
  uint2 staged[kNormParts];
#pragma unroll
  for (int k = 0; k < kNormParts; ++k) staged[k] = scale_by_norm(value(k), gain(k), factor);
  if (half) {
#pragma unroll
    for (int k = 0; k < kNormParts; ++k) staged[k] = halves_of(staged[k]);
  }
#pragma unroll
  for (int k = 0; k < kNormParts; ++k) to[k * kThreads] = staged[k];
}
// The same where no padding lies between parts, up to two rows at a time: they stay in registers,
// and every warp makes the factors itself. More would be more code. load(first, v): rows first and
// on, as far as there are.
inline constexpr int kNormsTogether = kOneRow ? 1 : 2;
using NormRows = uint2[kNormsTogether][kNormParts];
template <typename L>
__device__ __forceinline__ void norm_in_registers(L&& load, const std::uint16_t* weight,
                                                  const Matrix& m, int n) {
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
  unsigned char* x = memory() + s.x_at + thread * 8;
#pragma unroll 1
  for (int first = 0; first < n; first += kTogether) {
    NormRows v = {};
    float sum[kTogether] = {};
    load(first, v);
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
#pragma unroll
      for (int k = 0; k < kNormParts; ++k) sum[r] = squares(unpack_four(v[r][k]), sum[r]);
    }
    if constexpr (kTogether == 2) {
      // Half a warp a row: each adds what the other half has of it, then as warp_sum().
      const bool second = lane >= 16;
      const float own = second ? sum[1] : sum[0];
      const float other = second ? sum[0] : sum[1];
      float total = own + __shfl_xor_sync(0xFFFFFFFFU, other, 16);
#pragma unroll
      for (int d = 8; d > 0; d >>= 1) total += __shfl_xor_sync(0xFFFFFFFFU, total, d);
      if ((lane & 15) == 0) s.sums[first + (lane >> 4)][thread / 32] = total;
    } else {
      sum[0] = warp_sum(sum[0]);
      if (lane == 0) s.sums[first][thread / 32] = sum[0];
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
      factor[k] = staged_factor(half, norm_factor(total, hidden, s.params.shape.eps), x_scale);
    }
    float4 gains[kNormParts];
#pragma unroll
    for (int k = 0; k < kNormParts; ++k) gains[k] = gains_of(w[k]);
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      const float f = __shfl_sync(0xFFFFFFFFU, factor[r / 2], r % 2 * kWarps);
      if (first + r >= n) continue;
      store_normed([&](int k) { return unpack_four(v[r][k]); }, [&](int k) { return gains[k]; },
                   half, f, reinterpret_cast<uint2*>(x + (first + r) * row_bytes));
    }
  }
  sync();
}
__device__ __noinline__ void stage_norm(const Matrix& m, const std::uint16_t* from,
                                        const std::uint16_t* weight, int n, Rows row_of,
                                        std::uint16_t* out) {
  if constexpr (kM3Sizes) {
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
        weight, m, n);
    return;
  }
  const Layout layout(m);
  const bool half = m.format == Format::kE4M3Half;
  Shared& s = shared();
  unsigned char* x = memory() + s.x_at;
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
      sum = squares(
          unpack_four(*reinterpret_cast<const uint2*>(x + r * layout.row_bytes + place[k])), sum);
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
      const float4 v = unpack_four(*at);
      const float4 gains = gains_of(w[k]);
      const uint2 staged = scale_by_norm(v, gains, staged_factor(half, factor, m.x_scale));
      *at = half ? halves_of(staged) : staged;
      if (out != nullptr) {
        reinterpret_cast<uint2*>(
            out)[static_cast<std::int64_t>(row_of(r)) * parts + thread + k * kThreads] =
            scale_by_norm(v, gains, factor);
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
  const std::uint32_t magic = layout.vectors_divider;
#pragma unroll 1
  for (int i = c.thread; i < n * vectors; i += kThreads) {
    const int row = over(i, magic);
    const int vector = i - row * vectors;
    copy_async(c.x + (first + row) * row_bytes + layout.at(vector * 8), at(row) + vector * 8);
  }
}

// What product_by_part() stages at most: two parts of K of every row, each row with a bank shift,
// and what a norm multiplies them by.
inline constexpr int kBankShift = 64;  // parts: multiples of 128 bytes
inline constexpr int kPartBytes = kMaxHidden / kProjectionParts * 2;  // the widest
inline constexpr int kStagedPartsBytes = kMostRows * (2 * kPartBytes + kBankShift) + 2 * kPartBytes;

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

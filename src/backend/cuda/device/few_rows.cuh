// What fused kernels of MiniMax-M3 take from words into shared memory: that for two to four rows,
// whose stages are those of any step but for where values come from and go to, and take_columns()
// that for one.
#pragma once

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/device/words.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// The step's rows, normed, from words of a region of the stage that makes them. Nobody reads x any
// more once all warps have taken them.
__device__ __noinline__ void stage_norms_of_words(const Matrix& m, int region,
                                                  const std::uint16_t* weight, std::uint32_t tag,
                                                  int layer, int made_by, int stage) {
  const int n = rows_of(shared().step);
  norm_in_registers(
      [&](int first, NormRows& v) {
        // A row that is not there is the one before.
        const uint4* low = words_at(region, first) + threadIdx.x;
        const uint4* high = first + 1 < n ? low + kRowWords : low;
        uint4 w[kNormsTogether * kNormParts];
        take(w, tag, layer, made_by, [&](int k) {
          return k < kNormParts ? low + k * kThreads : high + (k - kNormParts) * kThreads;
        });
        if (first == 0 && threadIdx.x == 0) stamp(stage == kQkv ? layer + 1 : layer, stage, 0);
#pragma unroll
        for (int k = 0; k < kNormsTogether * kNormParts; ++k)
          v[k / kNormParts][k % kNormParts] = {w[k].x, w[k].y};
      },
      weight, m, n);
}

// Until some of 32 words spread over those from(0..total-1) are there, by one warp: the others are
// about to come. Until then polls of all of them by every block would slow down who makes them.
template <typename F>
__device__ __forceinline__ void await_first(int total, std::uint32_t tag, int layer, int made_by,
                                            F&& from) {
  const uint4* const own = from((static_cast<int>(threadIdx.x) & 31) * total >> 5);
  std::uint64_t start = 0;
  for (std::uint32_t polls = 1; !__any_sync(0xFFFFFFFFU, load_words(own).w == tag); ++polls) {
    if (polls % kPollsBetweenLooks != 0) continue;
    start = look(start, layer, made_by, own, tag);
    if (__any_sync(0xFFFFFFFFU, start == kGivenUp)) break;
  }
}

// Words [0, total) of a region, four at a time of a thread, into shared memory at at(word): eight
// bytes each. `from`(word): where it lies.
template <typename A, typename F>
__device__ __forceinline__ void stage_words(int total, std::uint32_t tag, int layer, int made_by,
                                            A&& at, F&& from) {
  constexpr int kTogether = 4;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < total; first += kTogether * kThreads) {
    const uint4* place[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = first + k * kThreads;
      place[k] = from(i < total ? i : first);
    }
    uint4 w[kTogether];
    take(w, tag, layer, made_by, [&](int k) { return place[k]; });
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = first + k * kThreads;
      if (i < total) *reinterpret_cast<uint2*>(at(i)) = {w[k].x, w[k].y};
    }
  }
}

// Sums of parts of 64 columns of the projections from `from` on of a row, scaled, into y; by one
// warp. `half`: the first 64 of them or the second.
__device__ __forceinline__ void take_columns(const Context& c, int row, int from, int half,
                                             float* y) {
  const Matrix& m = c.layer().qkv;
  // Lane l: rows l % 8 and 8 more of row group l / 8.
  const int d = half * 64 + c.lane / 8 * 16 + c.lane % 8;
  const float low = __ldg(m.row_scale + from + d);
  const float high = __ldg(m.row_scale + from + d + 8);
  const uint4* at = words_at(kProjectedWords, row) + ((from / 16 + half * 4) * 8 + c.lane);
  const int stride = m.row_groups * 8;
  uint4 w[kProjectionParts];
  take(w, tag_of(c), layer_of(c), kQkv, [&](int k) { return at + k * stride; });
  const auto sum = [&](std::uint32_t uint4::*f) {
    const auto v = [&](int k) { return __uint_as_float(w[k].*f); };
    return ((v(0) + v(1)) + (v(2) + v(3))) + ((v(4) + v(5)) + (v(6) + v(7)));
  };
  y[d] = sum(&uint4::x) * low;
  y[d + 8] = sum(&uint4::y) * high;
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

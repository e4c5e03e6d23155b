// Index keys of MiniMax-M3 (E4M3, 128 dims), sixteen at a time, by way of shared memory: in
// registers those of the next sixteen would be waited for, or spilled, before these are scored.
#pragma once

#include "backend/cuda/device/rows.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

inline constexpr int kIndexDim = 128;
inline constexpr int kKeyRow = kIndexDim + 16;  // of a key, so that rows lie in other banks
static_assert(16 * kKeyRow == kKeyGroupBytes && 4 * kIndexDim * 2 == kIndexQueryBytes);

__device__ __forceinline__ const std::int32_t* table_of(const Params& p, const StepRows& step,
                                                        int row) {
  return p.pages + static_cast<std::int64_t>(step.table[row]) * p.table_stride;
}

// Index queries are FP16 times a power of two, of which the hardware's conversion makes E4M3 keys.
__device__ __forceinline__ bool index_queries_are_half(const Shape& s, const Layer& layer) {
  return kM3 || (s.index_fp8 != 0 && layer.index_q_scale > 0);
}

// Where sixteen keys of a page lie in a layer's cache of them.
__device__ __forceinline__ std::int64_t place_of_keys(int group, std::int64_t page) {
  return (page * kPageTokens + group % 8 * 16) * kIndexDim;
}
// On their way to `to`; by one warp. Each is read once a step, or once by each row of its
// sequence: in the second-level cache they would take the place of what blocks hand to each other.
__device__ __forceinline__ void load_keys(const Context& c, std::int64_t place, unsigned char* to) {
  const unsigned char* from = c.layer().index_cache + place;
  const std::uint64_t policy = read_once_policy();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int row = k * 4 + c.lane / 8;
    const int at = c.lane % 8 * 16;
    copy_async_once(to + row * kKeyRow + at, from + row * kIndexDim + at, policy);
  }
}
__device__ __forceinline__ void load_keys(const Context& c, int group, std::int64_t page,
                                          unsigned char* to) {
  load_keys(c, place_of_keys(group, page), to);
}

// What a lane needs of them.
struct GroupOfKeys {
  uint4 low[2], high[2];
  __device__ __forceinline__ GroupOfKeys(const Context& c, const unsigned char* keys) {
    const unsigned char* key = keys + (c.lane >> 2) * kKeyRow + (c.lane & 3) * (kIndexDim / 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      low[i] = *reinterpret_cast<const uint4*>(key + 16 * i);
      high[i] = *reinterpret_cast<const uint4*>(key + 8 * kKeyRow + 16 * i);
    }
  }
};

// Of products of two keys g and g + 8 of sixteen with two index heads, 2 t and one more, the
// largest over the first `visible` keys, a NaN counting as the least; store(head, score) by one
// lane.
template <typename S>
__device__ __forceinline__ void best_of_keys(const Context& c, const float (&acc)[4], float post,
                                             int visible, S&& store) {
  const int heads = c.p.shape.index_heads;
  const int g = c.lane >> 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = 2 * (c.lane & 3) + i;
    if (i >= heads) break;  // the same for all lanes
    float a = acc[i] * post;
    float b = acc[2 + i] * post;
    a = a != a ? -1e30F : a;
    b = b != b ? -1e30F : b;
    float best = g < visible ? a : -INFINITY;
    if (g + 8 < visible && best < b) best = b;
#pragma unroll
    for (int d = 4; d < 32; d <<= 1) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, best, d);
      best = best < other ? other : best;
    }
    if (g == 0 && head < heads) store(head, best + 0.0F);
  }
}

// Their largest dot product with each index query of a row, of the first `visible` of them:
// score_keys()'s. `queries`: [index head][dim] in shared memory; store(head, score) by one lane.
template <typename S>
__device__ __forceinline__ void score_group(const Context& c, const GroupOfKeys& keys, int visible,
                                            const std::uint16_t* queries, S&& store) {
  const Shape& s = c.p.shape;
  const int g = c.lane >> 2;
  const int t = c.lane & 3;
  const std::uint16_t* q = queries + g * kIndexDim + t * (kIndexDim / 4);
  float acc[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint4 b = {0, 0, 0, 0};
    if (g < s.index_heads) b = *reinterpret_cast<const uint4*>(q + 8 * i);
    std::uint32_t low[4];
    std::uint32_t high[4];
    const uint4 l = keys.low[i / 2];
    const uint4 h = keys.high[i / 2];
    halves_of_e4m3(i % 2 == 0 ? l.x : l.z, low[0], low[1]);
    halves_of_e4m3(i % 2 == 0 ? l.y : l.w, low[2], low[3]);
    halves_of_e4m3(i % 2 == 0 ? h.x : h.z, high[0], high[1]);
    halves_of_e4m3(i % 2 == 0 ? h.y : h.w, high[2], high[3]);
    mma_half(acc, low[0], high[0], low[1], high[1], b.x, b.y);
    mma_half(acc, low[2], high[2], low[3], high[3], b.z, b.w);
  }
  best_of_keys(c, acc, inverse_power(c.layer().index_q_scale), visible, store);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

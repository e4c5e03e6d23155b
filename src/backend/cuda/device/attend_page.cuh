// Attention of the sixteen query heads of a KV head of MiniMax-M3 to one page, by a team of warps.
#pragma once

#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/device/team.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// Scratch of one chunk: values, then scores, probabilities and queries. The latter two lie as the
// tensor cores take them, so that a lane loads a fragment's four registers at once: of heads h and
// h + 8 two pairs of columns each, side by side.
inline constexpr int kScoreStride = 132;
inline constexpr int kPairStride = 288;  // of two heads, eight apart
static_assert(kAttentionScratch == 16 * kScoreStride * 4 + 2 * 8 * kPairStride * 2);

// Where a column of a head lies, among those of its pair: of the four-th four columns.
__device__ __forceinline__ int place_in_pair(int head, int four, int column) {
  return four * 8 + (column >> 1 & 1) * 4 + (head >> 3) * 2 + (column & 1);
}
// The same of dim d of its query: of 32 dims, which lane t of a fragment takes, fours of each lane
// lie side by side.
__device__ __forceinline__ int place_of_dim(int head, int d) {
  return place_in_pair(head, (d >> 2 & 7) * 4 + (d >> 5), d);
}

// Where a chunk's queries lie in its scratch: [8][kPairStride], BF16 scaled.
__device__ __forceinline__ std::uint16_t* queries_of(unsigned char* scratch, int value_row) {
  return reinterpret_cast<std::uint16_t*>(scratch + kPageTokens * value_row +
                                          16 * kScoreStride * 4 + 8 * kPairStride * 2);
}

// What of sixteen warps do one each, a warp of a team of WARPS does.
template <int WARPS>
inline constexpr int kShareOf = kWarps / WARPS;
// A warp's keys of a page, eight for each of its shares: of key team.warp * 8 + lane / 4 the 32
// dims of lane % 4.
template <int WARPS>
using PageKeys = uint4[kShareOf<WARPS>][2];
template <int WARPS>
__device__ __forceinline__ void load_page_keys(const Team<WARPS>& team, const unsigned char* page,
                                               PageKeys<WARPS>& raw) {
  constexpr int kDim = 128;
  const unsigned char* key =
      page + (team.warp * 8 + (team.lane >> 2)) * kDim + (team.lane & 3) * (kDim / 4);
#pragma unroll
  for (int j = 0; j < kShareOf<WARPS>; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      raw[j][i] = __ldcg(reinterpret_cast<const uint4*>(key + j * WARPS * 8 * kDim) + i);
  }
}
// Values of a page on their way into scratch. Those of keys past the end are zeros, whatever the
// page holds.
template <int WARPS>
__device__ __forceinline__ void start_page_values(const Team<WARPS>& team,
                                                  const unsigned char* values, int keys,
                                                  unsigned char* scratch) {
  constexpr int kDim = 128;
#pragma unroll
  for (int k = 0; k < 2 * kShareOf<WARPS>; ++k) {
    const int row = (team.thread >> 3) + k * (team.kThreadsOfTeam / 8);
    const int at = (team.thread & 7) * 16;
    unsigned char* to = scratch + row * value_row_bytes(kDim, true) + at;
    if (row < keys) {
      copy_async(to, values + row * kDim + at);
    } else {
      *reinterpret_cast<uint4*>(to) = {0, 0, 0, 0};
    }
  }
}
// Scores of a warp's keys with all sixteen queries: [16][kScoreStride].
template <int WARPS>
__device__ __forceinline__ void score_page(const Context& c, const Team<WARPS>& team,
                                           const PageKeys<WARPS>& raw, const std::uint16_t* queries,
                                           float* scores) {
  const Shape& s = c.p.shape;
  const int g = team.lane >> 2;
  const int t = team.lane & 3;
  float acc[kShareOf<WARPS>][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint16_t* q = queries + g * kPairStride + (8 * i + t) * 8;
    const uint4 a0 = *reinterpret_cast<const uint4*>(q);
    const uint4 a1 = *reinterpret_cast<const uint4*>(q + 4 * 8);
#pragma unroll
    for (int j = 0; j < kShareOf<WARPS>; ++j) {
      std::uint32_t b[4];
      decode_e4m3_pairs(i % 2 == 0 ? raw[j][i / 2].x : raw[j][i / 2].z, b[0], b[1]);
      decode_e4m3_pairs(i % 2 == 0 ? raw[j][i / 2].y : raw[j][i / 2].w, b[2], b[3]);
      mma(acc[j], a0.x, a0.y, a0.z, a0.w, b[0], b[1]);
      mma(acc[j], a1.x, a1.y, a1.z, a1.w, b[2], b[3]);
    }
  }
#pragma unroll
  for (int j = 0; j < kShareOf<WARPS>; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[j][i] = (acc[j][i] * kPostE4M3) * s.score_scale;
    float* to = scores + g * kScoreStride + (j * WARPS + team.warp) * 8 + 2 * t;
    *reinterpret_cast<float2*>(to) = {acc[j][0], acc[j][1]};
    *reinterpret_cast<float2*>(to + 8 * kScoreStride) = {acc[j][2], acc[j][3]};
  }
}
// A lane's four scores of head h, of keys lane + 32 i; minus infinity past the end, whose
// exponential is 0. Gives the largest.
__device__ __forceinline__ float load_scores(const float* scores, int h, int lane, int keys,
                                             float (&value)[4]) {
  float best = -INFINITY;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = lane + 32 * i;
    value[i] = at < keys ? scores[h * kScoreStride + at] : -INFINITY;
    best = best < value[i] ? value[i] : best;
  }
  return best;
}
// Their exponentials, where products take them, and the sum.
__device__ __forceinline__ float store_weights(std::uint16_t* probs, int h, int lane,
                                               const float (&value)[4], float best) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = lane + 32 * i;
    const float e = exponential(value[i] - best);
    sum += e;
    probs[(h & 7) * kPairStride + place_in_pair(h, at >> 2, at)] = scaled_bf16(e);
  }
  return sum;
}
// Weighted values, of the warp's first dim. A warp has sixteen dims, 16 n on, of two of each pair,
// or one of each with another warp. A matrix of eight keys and eight pairs of dims a step and half:
// keys 4 k, 4 k + 1 of the step's sixteen, then 4 k + 2, 4 k + 3, as attend_chunk pairs them.
template <int WARPS>
__device__ __forceinline__ int first_dim(const Team<WARPS>& team) {
  return (kShareOf<WARPS> == 1 ? team.warp >> 1 : team.warp) * 16;
}
template <int WARPS>
__device__ __forceinline__ void weigh_page(const Team<WARPS>& team, const unsigned char* scratch,
                                           const std::uint16_t* probs,
                                           float (&acc)[kShareOf<WARPS>][4]) {
  constexpr int kValueRow = value_row_bytes(128, true);
  const int g = team.lane >> 2;
  const int t = team.lane & 3;
  const int row = team.lane & 7;
  const unsigned char* value =
      scratch +
      ((team.lane >> 4) * 16 + (team.lane >> 3 & 1) * 2 + row / 2 * 4 + row % 2) * kValueRow +
      first_dim(team);
  const std::uint16_t* p = probs + g * kPairStride + t * 8;
#pragma unroll
  for (int step = 0; step < kPageTokens; step += 32) {
    std::uint32_t r[4];
    load_matrices_transposed(r, value + step * kValueRow);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint4 a = *reinterpret_cast<const uint4*>(p + (step + 16 * k) * 2);
#pragma unroll
      for (int j = 0; j < kShareOf<WARPS>; ++j) {
        const bool odd = kShareOf<WARPS> == 1 ? (team.warp & 1) != 0 : j == 1;
        std::uint32_t low = 0;
        std::uint32_t high = 0;
        decode_e4m3_pairs(__byte_perm(r[2 * k], r[2 * k + 1], odd ? 0x7531 : 0x6420), low, high);
        mma(acc[j], a.x, a.y, a.z, a.w, low, high);
      }
    }
  }
}

// Keys [0, keys) of a page: scores, exponentials, weighted values, unnormalised; attend_chunk()'s
// sums. The queries are staged, or, if ASYNC, a group of copies on their way.
// maximum_of(head, maximum, sum of exponentials); pair_of(head, dim, values of dim and dim + 1).
template <bool ASYNC, int WARPS, typename M, typename P>
__device__ __forceinline__ void attend_page(const Context& c, const Team<WARPS>& team,
                                            unsigned char* scratch, int head, int keys,
                                            std::int64_t page, M&& maximum_of, P&& pair_of) {
  constexpr int kDim = 128;
  constexpr int kValueRow = value_row_bytes(kDim, true);
  constexpr int kShare = kShareOf<WARPS>;
  const Shape& s = c.p.shape;
  const int g = team.lane >> 2;
  const int t = team.lane & 3;
  const std::int64_t base = (page * s.kv_heads + head) * kPageTokens * kDim;
  auto* scores = reinterpret_cast<float*>(scratch + kPageTokens * kValueRow);  // [16][132]
  auto* probs = reinterpret_cast<std::uint16_t*>(scores + 16 * kScoreStride);  // [8][288]
  const std::uint16_t* queries = queries_of(scratch, kValueRow);
  PageKeys<WARPS> raw;
  load_page_keys(team, c.layer().k_cache + base, raw);
  start_page_values(team, c.layer().v_cache + base, keys, scratch);
  if (ASYNC) wait_groups<0>();
  team.sync();  // all queries are staged
  score_page(c, team, raw, queries, scores);
  team.sync();
  int h = team.warp;
  float best = 0;
  float sum = 0;
  const auto report = [&] {
    const float all = warp_sum(sum);
    if (team.lane == 0) maximum_of(h, best, all);
  };
#pragma unroll 1
  while (true) {
    float value[4];
    best = warp_max(load_scores(scores, h, team.lane, keys, value)) + 0.0F;
    sum = store_weights(probs, h, team.lane, value, best);
    if (h + WARPS >= kWarps) break;
    report();
    h += WARPS;
  }
  wait_copies();
  team.sync();
  report();
  const int dims = first_dim(team);
  float acc[kShare][4] = {};
  weigh_page(team, scratch, probs, acc);
  if constexpr (kShare == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pair_of(g + i / 2 * 8, dims + 2 * (2 * t + i % 2),
              float2{acc[0][i] * kPostE4M3, acc[1][i] * kPostE4M3});
  } else {
    // By way of shared memory: stores of single values would take far longer than all the rest.
#pragma unroll
    for (int i = 0; i < 4; ++i)
      scores[(g + i / 2 * 8) * kScoreStride + dims + 2 * (2 * t + i % 2) + (team.warp & 1)] =
          acc[0][i] * kPostE4M3;
    team.sync();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int d = 2 * team.lane + 64 * k;
      pair_of(team.warp, d,
              *reinterpret_cast<const float2*>(scores + team.warp * kScoreStride + d));
    }
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

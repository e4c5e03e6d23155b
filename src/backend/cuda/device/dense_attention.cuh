// Attention of MiniMax-M3's dense layers: every row to all of its pages. Some consecutive pages, a
// number that the row's position alone decides (dense_log_span()), are a unit, whose maxima, sums
// and weighted values a team of warps keeps in registers from page to page; its result is a
// partial. Partials meet sixteen at a time, then what those gave.
#pragma once

#include "backend/cuda/device/attend_page.cuh"
#include "backend/cuda/device/select.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

inline constexpr int kMergedTogether = 16;  // partials

__device__ __forceinline__ int partial_size(const Shape& s) {
  return partial_floats(group_of(s), head_dim_of(s));
}
__device__ __forceinline__ float* partial_at(const Params& p, int row, int head, int chunk) {
  const Shape& s = p.shape;
  return p.partials +
         ((static_cast<std::int64_t>(row) * s.kv_heads + head) * p.max_chunks + chunk) *
             partial_size(s);
}

// A unit at one of its pages. Units are numbered row by row, head by head, as many a head as the
// row with most partials has.
struct DenseUnit {
  int unit;  // not below the number of units: none
  int row, head, partial;
  int log_span;   // of a unit's pages
  int page, end;  // pages of the row

  __device__ __forceinline__ bool first() const { return page == partial << log_span; }
  __device__ __forceinline__ bool last() const { return page + 1 == end; }
};
// The unit of that number, or the next one, `step` on, that has pages.
__device__ __forceinline__ DenseUnit dense_unit(const Context& c, int unit, int units, int step) {
  const int per_head = c.step().max_chunks[0];
  DenseUnit at{};
#pragma unroll 1
  for (at.unit = unit; at.unit < units; at.unit += step) {
    const int which = kDenseM3 ? over(at.unit, c.s.chunks_divider) : quotient(at.unit, per_head);
    at.partial = at.unit - which * per_head;
    at.row = row_of_task(which, c.p.shape.kv_heads);
    at.head = which - at.row * c.p.shape.kv_heads;
    const int pages = c.step().position[at.row] / kPageTokens + 1;
    at.log_span = dense_log_span(pages);
    at.page = at.partial << at.log_span;
    at.end = min(pages, at.page + (1 << at.log_span));
    if (at.page < pages) break;
  }
  return at;
}
__device__ __forceinline__ int keys_of(const Context& c, const DenseUnit& at) {
  return min(kPageTokens, c.step().position[at.row] + 1 - at.page * kPageTokens);
}

// What merges of a running maximum with the next chunk's multiply by.
struct ChunkFactors {
  float keep, add;
};
// Both of a head's running maximum and sum, and those factors.
__device__ __forceinline__ ChunkFactors add_chunk(float& maximum, float& total, float best,
                                                  float sum) {
  const float largest = maximum < best ? best : maximum;
  const ChunkFactors f{exponential(maximum - largest), exponential(best - largest)};
  maximum = largest;
  total = total * f.keep + sum * f.add;
  return f;
}

#if MONOLAYER_KERNELS_DENSE
using DenseTeam = Team<kWarps / kDenseTeams>;
static_assert(kShareOf<DenseTeam::kWarpsOfTeam> == 2,
              "half a warp a head, and a warp has both dims of its pairs");
inline constexpr int kDenseRedBytes = 2 * 128 * 16 * 4;  // whatever the number of rows
static_assert(kDenseTeams * (kTeamQueryBytes + 16 * 8) <= kDenseRedBytes);
static_assert(dense_red_columns(1) >= red_columns(1) && dense_red_columns(4) >= red_columns(4) &&
              dense_red_columns(kMaxRows) >= red_columns(kMaxRows));

// What the first half of a warp has as `first` and the second as `second`, combined over all lanes
// as a butterfly over the whole warp would combine either.
template <typename F>
__device__ __forceinline__ float half_warps(float first, float second, int lane, F&& combine) {
  const bool high = lane >= 16;
  float v = combine(high ? second : first, __shfl_xor_sync(0xFFFFFFFFU, high ? first : second, 16));
#pragma unroll
  for (int d = 8; d > 0; d >>= 1) v = combine(v, __shfl_xor_sync(0xFFFFFFFFU, v, d));
  return v;
}

__device__ __forceinline__ void attend_dense(Context& c) {
  constexpr int kTeamWarps = DenseTeam::kWarpsOfTeam;
  constexpr int kShare = kShareOf<kTeamWarps>;
  constexpr int kValueBytes = kPageTokens * value_row_bytes(128, true);
  constexpr int kValuePages = dense_value_pages(kMostRows);
  const DenseTeam team(c);
  const Layer& layer = c.layer();
  const int units = c.rows() * c.p.shape.kv_heads * c.step().max_chunks[0];
  const int step = kDenseTeams * c.blocks;
  DenseUnit at = dense_unit(c, c.block + team.number * c.blocks, units, step);
  if (at.unit >= units) return;
  unsigned char* const values = c.x + team.number * dense_attention_bytes(128, true, kMostRows);
  auto* const scores = reinterpret_cast<float*>(values + kValuePages * kValueBytes);  // [16][132]
  auto* const probs = reinterpret_cast<std::uint16_t*>(scores + 16 * kScoreStride);   // [8][288]
  auto* const queries = reinterpret_cast<std::uint16_t*>(c.red) + team.number * kTeamQueryBytes / 2;
  auto* const factors = reinterpret_cast<ChunkFactors*>(reinterpret_cast<unsigned char*>(c.red) +
                                                        kDenseTeams * kTeamQueryBytes) +
                        team.number * 16;
  const int g = team.lane >> 2;
  const int t = team.lane & 3;
  const int h = team.warp + (team.lane >= 16 ? kTeamWarps : 0);  // whose maximum this lane has
  PageKeys<kTeamWarps> raw;
  // A page on its way: keys into registers, queries of a unit, then values, a group of copies each;
  // with room for one page of values those wait until nobody reads the last ones.
  const unsigned char* own_values = nullptr;
  const auto start = [&](const DenseUnit& of, int page, int buffer) {
    const std::int64_t from =
        (static_cast<std::int64_t>(page) * c.p.shape.kv_heads + of.head) * kPageTokens * 128;
    load_page_keys(team, layer.k_cache + from, raw);
    if (of.first()) {
      const auto* q = reinterpret_cast<const uint4*>(
          c.p.q + (static_cast<std::int64_t>(of.row) * c.p.shape.heads + of.head * 16) * 128);
      copy_async(queries + (team.thread >> 5) * kPairStride + (team.thread & 31) * 8,
                 q + team.thread);
    }
    commit_copies();
    own_values = layer.v_cache + from;
    if constexpr (kValuePages > 1) {
      start_page_values(team, own_values, keys_of(c, of), values + buffer * kValueBytes);
      commit_copies();
    }
  };
  const auto page_of = [&](const DenseUnit& of) {
    return __ldg(table_of(c.p, c.step(), of.row) + of.page);
  };
  start(at, page_of(at), 0);
  float maximum = 0;
  float total = 0;
  float sums[kShare][4] = {};
  int buffer = 0;
#pragma unroll 1
  while (true) {
    // Of this page; `at` goes on to the next one.
    const bool first = at.first();
    const bool last = at.last();
    const int keys = keys_of(c, at);
    const std::int64_t partial = partial_at(c.p, at.row, at.head, at.partial) - c.p.partials;
    if (++at.page == at.end) at = dense_unit(c, at.unit + step, units, step);
    const bool more = at.unit < units;
    const int next_page = more ? page_of(at) : 0;
    wait_groups<kValuePages - 1>();
    team.sync();  // queries are there, and nobody is at the page before any more
    if constexpr (kValuePages == 1) {
      start_page_values(team, own_values, keys, values);
      commit_copies();
    }
    score_page(c, team, raw, queries, scores);
    team.sync();
    if (more) {
      start(at, next_page, buffer ^ 1);
    } else {
      commit_copies();
      if constexpr (kValuePages > 1) commit_copies();
    }
    {
      float value[kShare][4];
      const float low = load_scores(scores, team.warp, team.lane, keys, value[0]);
      const float high = load_scores(scores, team.warp + kTeamWarps, team.lane, keys, value[1]);
      const float best =
          half_warps(low, high, team.lane, [](float a, float b) { return a < b ? b : a; }) + 0.0F;
      const float sum = half_warps(
          store_weights(probs, team.warp, team.lane, value[0], __shfl_sync(0xFFFFFFFFU, best, 0)),
          store_weights(probs, team.warp + kTeamWarps, team.lane, value[1],
                        __shfl_sync(0xFFFFFFFFU, best, 16)),
          team.lane, [](float a, float b) { return a + b; });
      if (first) {
        maximum = best;
        total = sum;
      } else {
        const ChunkFactors f = add_chunk(maximum, total, best, sum);
        if ((team.lane & 15) == 0) factors[h] = f;
      }
    }
    wait_groups<kValuePages>();
    team.sync();
    float acc[kShare][4] = {};
    weigh_page(team, values + buffer * kValueBytes, probs, acc);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const ChunkFactors f = first ? ChunkFactors{} : factors[g + i / 2 * 8];
#pragma unroll
      for (int k = i; k < i + 2; ++k) {
#pragma unroll
        for (int j = 0; j < kShare; ++j) {
          const float value = acc[j][k] * kPostE4M3;
          sums[j][k] = first ? value : sums[j][k] * f.keep + value * f.add;
        }
      }
    }
    if (last) {
      float* const to = c.p.partials + partial;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<float2*>(to + (g + i / 2 * 8) * 128 + first_dim(team) +
                                   2 * (2 * t + i % 2)) = {sums[0][i], sums[1][i]};
      if ((team.lane & 15) == 0) {
        to[16 * 128 + h] = maximum;
        to[16 * 129 + h] = total;
      }
    }
    if (!more) break;
    if constexpr (kValuePages > 1) buffer ^= 1;
  }
}
#endif

// Factors of up to sixteen partials from `at` on, of head h of their group, and their sums: a scan
// of their maxima, side by side. Before the first one the maximum is such that what is scaled by
// exp of it is 0. By a warp; gives the largest so far, by lane.
__device__ __forceinline__ float scan_partials(const float* at, int h, int count, int lane,
                                               float4* factors) {
  const Shape& s = shared().params.shape;
  const int dim = head_dim_of(s);
  const bool there = lane < count;
  const float* own = at + lane * partial_size(s) + group_of(s) * dim + h;
  const float m = there ? load_l2(own) : -INFINITY;
  const float l = there ? load_l2(own + group_of(s)) : 0.0F;
  float largest = -INFINITY < m ? m : -INFINITY;
#pragma unroll
  for (int step = 1; step < kMergedTogether; step <<= 1) {
    const float before = __shfl_up_sync(0xFFFFFFFFU, largest, step);
    if (lane >= step) largest = before < largest ? largest : before;
  }
  const float before = __shfl_up_sync(0xFFFFFFFFU, largest, 1);
  float keep = exponential((lane == 0 ? -INFINITY : before) - largest);
  float add = exponential(m - largest);
  if (!there) keep = 1, add = 0;
  __syncwarp();
  if (lane < kMergedTogether) factors[lane] = {keep, add, l, 0};
  __syncwarp();
  return largest;
}

#if MONOLAYER_KERNELS_DENSE
// A block a (row, head): a warp for each sixteen partials, then all of those.
__device__ __forceinline__ void merge_dense(Context& c) {
  const Shape& s = c.p.shape;
  static_assert(kMostPartials <= kWarps * kMergedTogether);
  auto* const merged = reinterpret_cast<float*>(c.x);  // [16][128]
  float* const maxima = merged + kWarps * 128;
  float* const totals = maxima + kWarps;
  const int stride = partial_size(s);
#pragma unroll 1
  for (int task = c.block; task < c.rows() * s.heads; task += c.blocks) {
    const int row = row_of_head_task(task, s.heads);
    const int in_row = task - row * s.heads;
    const int head = in_row / 16;
    const int h = in_row - head * 16;
    const int partials = dense_partials(c.step().position[row] / kPageTokens + 1);
    const int groups = (partials + kMergedTogether - 1) / kMergedTogether;
    if (c.warp < groups) {
      auto* const factors = reinterpret_cast<float4*>(c.red) + c.warp * kMergedTogether;
      const int count = min(kMergedTogether, partials - c.warp * kMergedTogether);
      const float* at = partial_at(c.p, row, head, c.warp * kMergedTogether);
      const auto* from = reinterpret_cast<const float4*>(at + h * 128) + c.lane;
      constexpr int kAtOnce = 8;
      float4 o[kAtOnce];
      const auto load = [&](int first) {
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
          o[k] = __ldcg(from + (first + k < count ? first + k : 0) * (stride / 4));
      };
      load(0);
      const float largest = scan_partials(at, h, count, c.lane, factors);
      float4 value = {};
      float sum = 0;
#pragma unroll 1
      for (int first = 0; first < count; first += kAtOnce) {
        if (first > 0) load(first);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const float4 f = factors[first + k];
          sum = sum * f.x + f.z * f.y;
          value.x = value.x * f.x + o[k].x * f.y;
          value.y = value.y * f.x + o[k].y * f.y;
          value.z = value.z * f.x + o[k].z * f.y;
          value.w = value.w * f.x + o[k].w * f.y;
        }
      }
      reinterpret_cast<float4*>(merged + c.warp * 128)[c.lane] = value;
      if (c.lane == count - 1) maxima[c.warp] = largest;
      if (c.lane == 0) totals[c.warp] = sum;
    }
    sync(c);
    if (c.thread < 128) {
      float maximum = maxima[0];
      float sum = totals[0];
      float value = merged[c.thread];
#pragma unroll 1
      for (int k = 1; k < groups; ++k) {
        const ChunkFactors f = add_chunk(maximum, sum, maxima[k], totals[k]);
        value = value * f.keep + merged[k * 128 + c.thread] * f.add;
      }
      c.p.attended[static_cast<std::int64_t>(task) * 128 + c.thread] =
          scaled_half(__fdiv_rn(value, sum) * s.v_scale, c.layer().o.x_scale);
    }
    if (task + c.blocks < c.rows() * s.heads) sync(c);
  }
}
#endif

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

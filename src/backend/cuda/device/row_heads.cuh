// Heads, caches and index scores of the only row of a step of MiniMax-M3, handed over as words:
// what heads.cuh does for any step, with everything that needs no projection done before they are
// there.
#pragma once

#include "backend/cuda/device/heads.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// Whether attention is computed for every block of the context while blocks are being chosen, so
// that the merge only takes what was chosen: if each has a block of the grid, beside those that
// choose and merge. It reads keys and values that nobody uses, when memory is idle.
__device__ __forceinline__ bool attends_to_all(const Context& c) {
  const int units = c.p.shape.kv_heads * (c.step().position[0] / kPageTokens + 1);
  return c.step().score != 0 && units <= kWordUnits && units + c.p.shape.heads <= c.blocks;
}
// Blocks of a KV head that are attended to.
__device__ __forceinline__ int units_of_head(const Context& c) {
  return attends_to_all(c) ? c.step().position[0] / kPageTokens + 1 : c.step().max_chunks[1];
}

// Whether this block attends to the newest key of the only row and a KV head.
__device__ __forceinline__ bool attends_last(const Context& c, int head) {
  const int unit = (head + 1) * units_of_head(c) - 1;
  return unit - over_blocks(unit) * c.blocks == c.block;
}

// Whether the scores of the only row are handed over as words; beyond, blocks are counted.
__device__ __forceinline__ bool scores_are_words(const StepRows& step) {
  return step.max_groups <= kWordGroups;
}

// Where keys of a warp's next group lie. Those of the first warps' first groups are on their way
// while projections may still be read: behind these. Other warps' lie there once heads are made,
// behind the index queries; there is no room for the last warp's.
inline constexpr int kEarlyBegin = (kMaxHidden * 2 + 127) / 128 * 128 + 256;
inline constexpr int kEarlyWarps = (attention_bytes(128, true) - kEarlyBegin) / kKeyGroupBytes;
inline constexpr int kKeyWarps = kEarlyWarps + (kEarlyBegin - kIndexQueryBytes) / kKeyGroupBytes;
static_assert(kKeyWarps == kWarps - 1);
__device__ __forceinline__ unsigned char* keys_of_warp(const Context& c) {
  return c.x + (c.warp < kEarlyWarps ? kEarlyBegin + c.warp * kKeyGroupBytes
                                     : kIndexQueryBytes + (c.warp - kEarlyWarps) * kKeyGroupBytes);
}

// Of the index keys that this block will score in a layer; by one warp.
__device__ __forceinline__ void prefetch_row_keys(const Context& c, const Layer& layer) {
  constexpr int kMost = 64;  // groups; more would delay what it is to save
  if (c.step().score == 0) return;
  const Share mine(c.step().max_groups, c.block, c.blocks);
  const std::int32_t* pages = table_of(c.p, c.step(), 0);
#pragma unroll 1
  for (int i = c.lane; i < min(mine.count(), kMost) * 16; i += 32) {
    const int group = mine.begin + i / 16;
    const std::int64_t page = __ldg(pages + group / 8);
    prefetch_l2(layer.index_cache +
                (page * kPageTokens + group % 8 * 16 + i % 16) * index_dim_of(c.p.shape));
  }
}

// Most jobs of a block: all heads of a KV head are index heads of their own, its queries are dealt
// out, and a launch of several ranks leaves each at least a block a query head.
inline constexpr int kMaxRowJobs = 32;
// A head's job: columns of the projections from `from` on, with what it takes to finish it.
struct RowJob {
  int head, from;  // head: of queries, keys, values, index queries, index keys in this order
};
// Job `job` of this block: index queries, own query heads, the newest index key, keys and values of
// the heads whose newest key this block attends to. head -1: no such job.
__device__ __forceinline__ RowJob row_job(const Context& c, int job, int own_heads, bool score) {
  const Shape& s = c.p.shape;
  const int first_index = s.heads + 2 * s.kv_heads;
  if (job < s.index_heads && score) return {first_index + job, s.index_q_at + job * 128};
  if (score) job -= s.index_heads;
  if (job < own_heads) {
    const int head = c.block + job * c.blocks;
    return {head, s.q_at + head * 128};
  }
  job -= own_heads;
  if (job == 0) {
    // Whoever scores the group of the newest index key makes it; without scores, the last block.
    const Share mine(c.step().max_groups, c.block, c.blocks);
    const int group = c.step().position[0] / 16;
    const bool here = score ? group >= mine.begin && group < mine.end : c.block == c.blocks - 1;
    return {here ? first_index + s.index_heads : -1, s.index_k_at};
  }
  --job;
  const int kv = job >> 1;
  if (kv >= s.kv_heads || !attends_last(c, kv)) return {-1, 0};
  return (job & 1) == 0 ? RowJob{s.heads + kv, s.k_at + kv * 128}
                        : RowJob{s.heads + s.kv_heads + kv, s.v_at + kv * 128};
}

// What a block does in every layer of a launch, made in its first: its jobs, and the page of each
// warp's first group of keys. Lies where steps of several rows have their choices.
struct RowPlan {
  std::int32_t jobs, page[kWarps];
  std::int32_t units, of_head;  // of attention; of a KV head
  // If all are attended to: the block of the context that this block attends to, and its page; -1:
  // if not.
  std::int32_t own_block, own_page;
  std::int16_t head[kMaxRowJobs], from[kMaxRowJobs];
};
static_assert(sizeof(RowPlan) <= sizeof(Shared::route_weight));
__device__ __forceinline__ RowPlan& row_plan() {
  return *reinterpret_cast<RowPlan*>(&shared().route_weight[0][0]);
}
__device__ __noinline__ void plan_row() {
  const Context c = open_context({});
  const Shape& s = c.p.shape;
  const bool score = c.step().score != 0;
  RowPlan& plan = row_plan();
  const Share mine(score ? c.step().max_groups : 0, c.block, c.blocks);
  if (c.lane == 0) {
    const int group = min(mine.begin + c.warp, c.step().max_groups - 1);
    plan.page[c.warp] = __ldg(table_of(c.p, c.step(), 0) + group / 8);
  }
  if (c.thread == 0) {
    const int own_heads = c.block < s.heads ? over_blocks(s.heads - 1 - c.block) + 1 : 0;
    const int jobs = (score ? s.index_heads : 0) + own_heads + 1 + 2 * s.kv_heads;
    int n = 0;
#pragma unroll 1
    for (int i = 0; i < jobs; ++i) {
      const RowJob job = row_job(c, i, own_heads, score);
      if (job.head < 0 || n == kMaxRowJobs) continue;
      plan.head[n] = static_cast<std::int16_t>(job.head);
      plan.from[n++] = static_cast<std::int16_t>(job.from);
    }
    plan.jobs = n;
    plan.of_head = units_of_head(c);
    plan.units = s.kv_heads * plan.of_head;
    plan.own_block = attends_to_all(c) ? c.block % plan.of_head : -1;
    plan.own_page = plan.own_block >= 0 ? __ldg(table_of(c.p, c.step(), 0) + plan.own_block) : -1;
  }
  sync(c);
}

// Norm, rotation and the one rounding of a job's columns in y, then where they belong; by one warp.
__device__ __forceinline__ void finish_row_head(const Context& c, const RowJob& job,
                                                const HeadNorm& n, const float* y,
                                                std::uint16_t* queries) {
  const Shape& s = c.p.shape;
  const Layer& layer = c.layer();
  const int first_index = s.heads + 2 * s.kv_heads;
  const bool value = job.head >= s.heads + s.kv_heads && job.head < first_index;
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = y[c.lane + 32 * i];
  if (!value) n.apply(v, s.eps);
  if (job.head < s.heads) {
    if (is_stalled(kHeads)) return;
    const auto two = [&](int i) {
      return static_cast<std::uint32_t>(scaled_bf16(v[i])) |
             static_cast<std::uint32_t>(scaled_bf16(v[i + 1])) << 16;
    };
    store_words(words_at(kQueryWords) + job.head * 32 + c.lane, {two(0), two(2), 0, tag_of(c)});
    return;
  }
  if (job.head >= first_index && job.head < first_index + s.index_heads) {
    std::uint16_t* query = queries + (job.head - first_index) * index_dim_of(s);
#pragma unroll
    for (int i = 0; i < 4; ++i) query[c.lane + 32 * i] = scaled_half(v[i], layer.index_q_scale);
    return;
  }
  const int position = c.step().position[0];
  const std::int64_t page = __ldg(table_of(c.p, c.step(), 0) + position / kPageTokens);
  const int slot = position % kPageTokens;
  float scale = s.index_scale;
  unsigned char* entry = layer.index_cache + (page * kPageTokens + slot) * index_dim_of(s);
  if (job.head < first_index) {
    const int kv = job.head - s.heads - (value ? s.kv_heads : 0);
    scale = value ? s.v_scale : s.k_scale;
    entry = (value ? layer.v_cache : layer.k_cache) +
            ((page * s.kv_heads + kv) * kPageTokens + slot) * head_dim_of(s);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    entry[c.lane + 32 * i] =
        __nv_cvt_float_to_fp8(__fdiv_rn(round_bf16(v[i]), scale), __NV_SATFINITE, __NV_E4M3);
  }
}

// Asks the second-level cache for the keys and values that this block will attend to, if it is
// known which: a line a thread.
__device__ __forceinline__ void prefetch_own_block(const Context& c) {
  const RowPlan& plan = row_plan();
  if (plan.own_block < 0 || c.block >= plan.units || c.thread >= 2 * kPageTokens) return;
  const int head = c.block / plan.of_head;
  const std::int64_t line =
      (static_cast<std::int64_t>(plan.own_page) * c.p.shape.kv_heads + head) * kPageTokens +
      c.thread % kPageTokens;
  const Layer& layer = c.layer();
  prefetch_l2((c.thread < kPageTokens ? layer.k_cache : layer.v_cache) + line * 128);
}

__device__ __forceinline__ void row_heads_stage(Context& c) {
  constexpr int kJobs = kWarps / 2;  // at once, two warps each
  const Shape& s = c.p.shape;
  const StepRows& step = c.step();
  const bool score = step.score != 0;
  const bool by_words = scores_are_words(step);
  const Share mine(score ? step.max_groups : 0, c.block, c.blocks);
  const int newest = step.position[0] / 16;
  if (c.layers_done == 0) plan_row();
  const RowPlan& plan = row_plan();
  const int jobs = plan.jobs;
  prefetch_own_block(c);
  auto* queries = reinterpret_cast<std::uint16_t*>(c.x);  // [index head][dim]
  float* y = c.red;                                       // [kJobs][128]
  // The keys of this warp's first group, but for the newest one, are there.
  const int first = mine.begin + c.warp;
  const bool early = c.warp < kEarlyWarps && first < mine.end && first != newest;
  if (early) load_keys(c, first, plan.page[c.warp], keys_of_warp(c));
#pragma unroll 1
  for (int base = 0; base < jobs; base += kJobs) {
    if (base > 0) sync(c);
    // What job `warp` needs when its columns are there.
    const auto job_at = [&](int i) {
      return i < jobs ? RowJob{plan.head[i], plan.from[i]} : RowJob{-1, 0};
    };
    const RowJob mine_job = job_at(c.warp < kJobs ? base + c.warp : jobs);
    HeadNorm n{};
    if (mine_job.head >= 0) {
      const int first_index = s.heads + 2 * s.kv_heads;
      const std::uint16_t* weight = mine_job.head < s.heads       ? c.layer().q_norm
                                    : mine_job.head < first_index ? c.layer().k_norm
                                    : mine_job.head < first_index + s.index_heads
                                        ? c.layer().index_q_norm
                                        : c.layer().index_k_norm;
      n.load(weight, c.p.step->rope[0], c.lane);
    }
    const int which = c.warp >> 1;
    const RowJob job = job_at(base + which);
    if (job.head >= 0) take_columns(c, 0, job.from, c.warp & 1, y + which * 128);
    sync(c);
    if (mine_job.head >= 0) finish_row_head(c, mine_job, n, y + c.warp * 128, queries);
  }
  sync(c);  // new entries are stored, y is free
  if (!score) return;
  if (c.thread == 0) stamp(layer_of(c), kHeads, 0);
  if (is_stalled(kHeads)) return;
  // Keys of the next group are on their way while these are scored.
  const int end = min(mine.end, newest + 1);
  if (c.warp >= kKeyWarps || first >= end) return;
  const std::int32_t* pages = table_of(c.p, c.step(), 0);
  unsigned char* const keys = keys_of_warp(c);
  if (!early) load_keys(c, first, __ldg(pages + first / 8), keys);
#pragma unroll 1
  for (int group = first; group < end; group += kKeyWarps) {
    const int next = group + kKeyWarps;
    const std::int64_t page = next < end ? __ldg(pages + next / 8) : 0;
    wait_copies();
    __syncwarp();
    const GroupOfKeys own(c, keys);
    __syncwarp();
    if (next < end) load_keys(c, next, page, keys);
    score_group(c, own, step.position[0] + 1 - group * 16, queries, [&](int head, float score) {
      if (by_words) {
        store_value(kScoreWords, head * kWordGroups + group, score, tag_of(c));
      } else {
        store_score(c, 0, head, group, score);
      }
    });
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

// What a block does in the stage of heads of MiniMax-M3's layers (head_plan.h), worked out before a
// launch's first layer: places of entries, divisions and page tables are asked for once, not in
// every layer behind what the stage waits for.
#pragma once

#include <cstddef>

#include "backend/cuda/device/attend_page.cuh"
#include "backend/cuda/device/score.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// In the kernels for M3 of more rows than one, keys of a warp's next tasks are on their way into
// shared memory while it does something else: those of its first ones while it waits for the
// projections. They lie behind the index queries of all rows, but for:
inline constexpr bool kStagesKeys = kM3 && !kOneRow;
inline constexpr int kKeyBuffers = key_buffers(kMostRows);  // of a warp
static_assert(kKeyBuffers <= kMostKeyBuffers);
inline constexpr int kKeysBegin = kMostRows * kIndexQueryBytes;
// Of more than four rows, those of a warp's first task, which lie where the parts of normed rows
// that projections take do not reach: they are on their way while those are waited for.
inline constexpr bool kEarlyKeys = kStagesKeys && kNormsByPart;
inline constexpr int kEarlyKeysBegin = kKeysBegin + kWarps * kKeyGroupBytes;
static_assert(!kEarlyKeys || (kKeyBuffers == 2 && kStagedPartsBytes <= kEarlyKeysBegin));
__device__ __forceinline__ unsigned char* key_buffer(const Context& c, int which) {
  if constexpr (kEarlyKeys) {
    return c.x + (which == 0 ? kEarlyKeysBegin : kKeysBegin) + c.warp * kKeyGroupBytes;
  }
  return c.x + kKeysBegin + (c.warp * kKeyBuffers + which) * kKeyGroupBytes;
}
// Task `task` of a block's share: a row and sixteen keys.
struct ScoreTask {
  int row, group;
  __device__ static ScoreTask of(int task, int groups) {
    const int row = row_of_task(task, groups);
    return {row, task - row * groups};
  }
  // The one `n` tasks on: fewer than a row has, as only rows of more than 16 blocks are scored.
  __device__ ScoreTask after(int n, int groups) const {
    ScoreTask next = *this;
    next.group += n;
    if (next.group >= groups) next.group -= groups, ++next.row;
    return next;
  }
};
// Whether all keys of a task are there before this step's are made. All lanes of a warp.
__device__ __forceinline__ bool keys_are_old(const Context& c, const ScoreTask& task) {
  const StepRows& step = c.step();
  const bool newer = c.lane < rows_of(step) && step.table[c.lane] == step.table[task.row] &&
                     step.position[c.lane] / 16 <= task.group;
  return !__any_sync(0xFFFFFFFFU, newer);
}
// This step's rows whose index keys lie in what this block scores, a bit each. All lanes of a warp.
__device__ __forceinline__ std::uint32_t rows_with_keys_here(const Context& c, const Share& scored,
                                                             int first_row, int end_row) {
  const StepRows& step = c.step();
  bool here = false;
  if (c.lane < rows_of(step)) {
#pragma unroll 1
    for (int r = first_row; r < end_row; ++r) {
      const int at = r * step.max_groups + step.position[c.lane] / 16;
      here |= step.table[r] == step.table[c.lane] && at >= scored.begin && at < scored.end;
    }
  }
  return __ballot_sync(0xFFFFFFFFU, here);
}
// Job `job` of a block as planned: index queries of the rows it scores, its deal of queries, keys
// and values of all rows, and index keys of rows `keys`. Threads come with jobs of all kinds: what
// takes long, they do together.
__device__ __forceinline__ HeadJob head_job(const Context& c, int first_row, int index_jobs,
                                            int dealt, int per_row, std::uint32_t keys, int job) {
  enum Kind { kQuery, kKey, kValue, kIndexQuery, kIndexKey };
  const Shape& s = c.p.shape;
  const StepRows& step = c.step();
  const int first_index = s.heads + 2 * s.kv_heads;
  Kind kind = kIndexKey;
  int row = 0;
  int head = 0;
  if (job < index_jobs) {
    kind = kIndexQuery;
    row = first_row + row_of_head_task(job, s.index_heads);
    head = job - (row - first_row) * s.index_heads;
  } else if (job < index_jobs + dealt) {
    const int task = c.block + (job - index_jobs) * c.blocks;
    row = row_of_task(task, per_row);
    head = task - row * per_row;
    if (head < first_index) {
      kind = head < s.heads ? kQuery : head < s.heads + s.kv_heads ? kKey : kValue;
      if (kind != kQuery) head -= kind == kKey ? s.heads : s.heads + s.kv_heads;
    } else {
      head = 0;
    }
  } else {
    for (int skip = job - index_jobs - dealt; skip > 0; --skip) keys &= keys - 1;
    row = __ffs(static_cast<int>(keys)) - 1;
  }
  const int position = step.position[row];
  const int page = __ldg(table_of(c.p, step, row) + position / kPageTokens);
  const int heads = kind == kIndexKey ? 1 : s.kv_heads;
  int from = s.index_k_at;
  int to = (page * heads + head) * kPageTokens + position % kPageTokens;
  std::size_t norm = offsetof(Layer, index_k_norm);
  std::size_t cache = offsetof(Layer, index_cache);
  std::size_t scale = offsetof(Shape, index_scale);
  if (kind == kQuery) {
    from = s.q_at;
    to = ((row * s.heads + head) - (head & 15)) * 128 + (head & 7) * 256 +
         place_of_dim(head & 15, 0);
    norm = offsetof(Layer, q_norm);
    cache = 0;
  } else if (kind == kKey) {
    from = s.k_at;
    norm = offsetof(Layer, k_norm);
    cache = offsetof(Layer, k_cache);
    scale = offsetof(Shape, k_scale);
  } else if (kind == kValue) {
    from = s.v_at;
    norm = 0;
    cache = offsetof(Layer, v_cache);
    scale = offsetof(Shape, v_scale);
  } else if (kind == kIndexQuery) {
    from = s.index_q_at;
    to = job * 128;
    norm = offsetof(Layer, index_q_norm);
    cache = 0;
  }
  return {from + head * 128,
          to,
          static_cast<std::uint16_t>(norm),
          static_cast<std::uint16_t>(cache),
          static_cast<std::uint16_t>(scale),
          static_cast<std::int8_t>(row),
          kind == kIndexQuery};
}
// By all computing warps, before a launch's first layer. The host sees to it that all jobs fit.
__device__ __noinline__ void plan_heads() {
  const Context c = open_context({});
  const Shape& s = c.p.shape;
  const StepRows& step = c.step();
  HeadPlan& plan = c.s.heads;
  const int groups = step.max_groups;
  const Share mine = score_share(c);
  const bool scores = mine.count() > 0;
  const int first_row = scores ? row_of_task(mine.begin, groups) : 0;
  const int end_row = scores ? row_of_task(mine.end - 1, groups) + 1 : 0;
  const int per_row = s.heads + 2 * s.kv_heads + (step.score != 0 ? 0 : 1);
  const int dealt = over_blocks(rows_of(step) * per_row - c.block + c.blocks - 1);
  const int index_jobs = (end_row - first_row) * s.index_heads;
  // Without scores index keys are dealt out too.
  const std::uint32_t keys = rows_with_keys_here(c, mine, first_row, end_row);
  const int jobs = index_jobs + dealt + __popc(keys);
  if (jobs > kMaxHeadJobs) __trap();
  if (c.thread == 0) {
    plan.begin = mine.begin;
    plan.end = mine.end;
    plan.first_row = first_row;
    plan.jobs = jobs;
  }
  if (c.thread < jobs)
    plan.job[c.thread] = head_job(c, first_row, index_jobs, dealt, per_row, keys, c.thread);
  ScoreTask task = ScoreTask::of(mine.begin + c.warp, groups);
  plan.row[c.warp] = task.row;
  plan.group[c.warp] = task.group;
  if constexpr (kStagesKeys) {
    int group[kKeyBuffers];
    std::int64_t page[kKeyBuffers];  // all asked for before one is waited for
#pragma unroll
    for (int k = 0; k < kKeyBuffers; ++k) {
      group[k] = task.group;
      page[k] = -1;
      if (mine.begin + c.warp + k * kWarps < mine.end && keys_are_old(c, task) &&
          task.group <= step.position[task.row] / 16)
        page[k] = __ldg(table_of(c.p, step, task.row) + task.group / 8);
      task = task.after(kWarps, groups);
    }
#pragma unroll
    for (int k = 0; k < kKeyBuffers; ++k)
      plan.keys[c.warp][k] = page[k] < 0 ? -1 : place_of_keys(group[k], page[k]);
  }
  sync(c);
}
}  // namespace monolayer::cuda::MONOLAYER_KERNELS

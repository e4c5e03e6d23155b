// Heads, caches and index scores of a layer of MiniMax-M3, as planned.
#pragma once

#include "backend/cuda/device/few_rows.cuh"
#include "backend/cuda/device/head_plan.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// A head of MiniMax-M3, of which a lane has dims lane + 32 i: both halves of each rotated pair.
// Norm and rotation of queries and keys.
struct HeadNorm {
  std::uint16_t weight[4];  // BF16, not touched before it is used: it is on its way until then
  float cosine, sine;

  __device__ __forceinline__ void load(const std::uint16_t* weights, const float* rope, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weight[i] = __ldg(weights + lane + 32 * i);
    cosine = __ldg(rope + lane);
    sine = __ldg(rope + 32 + lane);
  }
  __device__ __forceinline__ void apply(float (&v)[4], float eps) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum = fmaf(v[i], v[i], sum);
    const float factor = factor_of_mean(warp_sum(sum) * 0x1p-7F, eps);  // of 128, exactly
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[i] =
          (v[i] * factor) * (1.0F + __uint_as_float(static_cast<std::uint32_t>(weight[i]) << 16));
    const float low = v[0];
    v[0] = low * cosine - v[1] * sine;
    v[1] = v[1] * cosine + low * sine;
  }
};

// One head of one row as planned, by one warp: norm, rotation, the one rounding, then where it
// belongs. columns(from): its columns, scaled sums in shared memory; null: another warp goes on.
template <typename C>
__device__ __forceinline__ void finish_planned(const Context& c, const HeadJob& job,
                                               std::uint16_t* index_queries, C&& columns) {
  const auto* layer = reinterpret_cast<const unsigned char*>(&c.layer());
  HeadNorm n{};
  if (job.norm_at != 0)
    n.load(*reinterpret_cast<const std::uint16_t* const*>(layer + job.norm_at),
           c.p.step->rope[job.row], c.lane);
  const float* const y = columns(job.from);
  if (y == nullptr) return;
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = y[c.lane + 32 * i];
  if (job.norm_at != 0) n.apply(v, c.p.shape.eps);
  __syncwarp();
  if (job.cache_at == 0) {
    // Queries lie where attend_page() wants them.
    const int at = job.index ? c.lane : place_of_dim(0, c.lane);
    const int step = job.index ? 32 : place_of_dim(0, 32);
    std::uint16_t* const to = (job.index ? index_queries : c.p.q) + job.to + at;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[i * step] = job.index ? scaled_half(v[i], c.layer().index_q_scale) : scaled_bf16(v[i]);
    return;
  }
  unsigned char* const to = *reinterpret_cast<unsigned char* const*>(layer + job.cache_at) +
                            static_cast<std::int64_t>(job.to) * 128 + c.lane;
  const float scale = *reinterpret_cast<const float*>(
      reinterpret_cast<const unsigned char*>(&c.p.shape) + job.scale_at);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    to[32 * i] =
        __nv_cvt_float_to_fp8(__fdiv_rn(round_bf16(v[i]), scale), __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ void start_keys_of(const Context& c, const ScoreTask& task, int which) {
  if (task.group > c.step().position[task.row] / 16) return;  // no such page
  load_keys(c, task.group, table_of(c.p, c.step(), task.row)[task.group / 8], key_buffer(c, which));
}
// Keys of this warp's first tasks, a group of copies each, whoever still reads x having come first.
__device__ __forceinline__ void start_keys(const Context& c, int first, int end) {
#pragma unroll
  for (int k = first; k < end; ++k) {
    const std::int64_t place = c.s.heads.keys[c.warp][k];
    if (place >= 0) load_keys(c, place, key_buffer(c, k));
    commit_copies();
  }
}
// Scores of all tasks of a block, whose first keys were started before its new keys were made.
__device__ __forceinline__ void score_tasks(const Context& c, const std::uint16_t* queries) {
  const StepRows& step = c.step();
  const HeadPlan& plan = c.s.heads;
  const int begin = plan.begin + c.warp;
  const int end = plan.end;
  if (begin >= end) return;
  const int first_row = plan.first_row;
  const int groups = step.max_groups;
  ScoreTask t{plan.row[c.warp], plan.group[c.warp]};
  {
    ScoreTask start = t;
#pragma unroll 1
    for (int k = 0; k < kKeyBuffers; ++k) {
      if (begin + k * kWarps >= end) break;
      // Waited for by whoever takes the first task, with all others before it.
      if (plan.keys[c.warp][k] < 0) start_keys_of(c, start, k);
      start = start.after(kWarps, groups);
    }
  }
  bool first = true;
  int which = 0;
#pragma unroll 1
  for (int task = begin; task < end; task += kWarps) {
    if (first) {
      wait_copies();
    } else {
      wait_groups<kKeyBuffers - 1>();
    }
    first = false;
    __syncwarp();
    const GroupOfKeys keys(c, key_buffer(c, which));
    __syncwarp();
    if (task + kKeyBuffers * kWarps < end)
      start_keys_of(c, t.after(kKeyBuffers * kWarps, groups), which);
    commit_copies();
    which = which + 1 == kKeyBuffers ? 0 : which + 1;
    const int visible = step.position[t.row] + 1 - t.group * 16;
    if (visible > 0) {
      score_group(c, keys, visible,
                  queries + (t.row - first_row) * c.p.shape.index_heads * kIndexDim,
                  [&](int head, float score) { store_score(c, t.row, head, t.group, score); });
    }
    t = t.after(kWarps, groups);
  }
}

// heads_stage() of MiniMax-M3.
template <bool WORDS>
__device__ __forceinline__ void planned_heads(Context& c) {
  const HeadPlan& plan = c.s.heads;
  const int jobs = plan.jobs;
  auto* queries = reinterpret_cast<std::uint16_t*>(c.x);  // [row][index head][dim]
  if constexpr (WORDS) {
    // Two warps a job take its columns, one finishes it.
    constexpr int kTogether = kWarps / 2;
    float* const y = c.red + (c.warp >> 1) * 128;
#pragma unroll 1
    for (int base = 0; base < jobs; base += kTogether) {
      if (base > 0) sync(c);
      // All warps meet in one place: those without a job go there with one of which they take
      // nothing.
      const int at = base + (c.warp >> 1);
      const bool there = at < jobs;
      const HeadJob job = plan.job[there ? at : 0];
      finish_planned(c, job, queries, [&](int from) -> const float* {
        if (there) take_columns(c, job.row, from, c.warp & 1, y);
        sync(c);
        return there && (c.warp & 1) == 0 ? y : nullptr;
      });
    }
  } else {
    float* const y = c.red + c.warp * 128;
#pragma unroll 1
    for (int at = c.warp; at < jobs; at += kWarps) {
      const HeadJob job = plan.job[at];
      finish_planned(c, job, queries, [&](int from) -> const float* {
        load_columns(c.layer(), job.row, from, 128, y);
        return y;
      });
    }
  }
  sync(c);
  if (WORDS && c.thread == 0) stamp(layer_of(c), kHeads, 0);
  if constexpr (kStagesKeys) {
    score_tasks(c, queries);
  } else {
#pragma unroll 1
    for (int task = plan.begin + c.warp; task < plan.end; task += kWarps) {
      if (task <= c.step().position[0] / 16) score_keys(c, 0, task, queries);
    }
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

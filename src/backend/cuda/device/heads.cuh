// Heads, caches and index scores of one layer: everything between the projections and the choice
// of blocks, in one stage.
#pragma once

#include "backend/cuda/device/attend_page.cuh"
#include "backend/cuda/device/few_rows.cuh"
#include "backend/cuda/device/index_keys.cuh"

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
    const float factor = norm_factor(warp_sum(sum), 128, eps);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[i] =
          (v[i] * factor) * (1.0F + __uint_as_float(static_cast<std::uint32_t>(weight[i]) << 16));
    const float low = v[0];
    v[0] = low * cosine - v[1] * sine;
    v[1] = v[1] * cosine + low * sine;
  }
};

// The head whose columns begin at `from`, summed over the parts and scaled, by one warp: into y.
__device__ __forceinline__ void load_columns(const Layer& layer, int row, int from, int dim,
                                             float* y) {
  const Params& p = shared().params;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const float* x = p.projected + static_cast<std::int64_t>(row) * p.projected_stride + from;
  const std::int64_t part_stride = static_cast<std::int64_t>(kMaxRows) * p.projected_stride;
  // The parts of dims 4 lane and three more, in the fixed tree.
  if (4 * lane < dim) {
    float4 part[kProjectionParts];
#pragma unroll
    for (int k = 0; k < kProjectionParts; ++k) {
      part[k] = __ldcg(reinterpret_cast<const float4*>(x + k * part_stride) + lane);
    }
    float4 scale = {1, 1, 1, 1};
    if (layer.qkv.row_scale != nullptr) {
      scale = __ldg(reinterpret_cast<const float4*>(layer.qkv.row_scale + from) + lane);
    }
    const auto total = [&](float float4::*f) {
      return ((part[0].*f + part[1].*f) + (part[2].*f + part[3].*f)) +
             ((part[4].*f + part[5].*f) + (part[6].*f + part[7].*f));
    };
    reinterpret_cast<float4*>(y)[lane] = {total(&float4::x) * scale.x, total(&float4::y) * scale.y,
                                          total(&float4::z) * scale.z, total(&float4::w) * scale.w};
  }
  __syncwarp();
}

// One head of one row by one warp: norm, rotation, the one rounding; queries to memory, index
// queries to shared memory, keys and values to the caches. columns(from, dim): its columns, scaled
// sums in shared memory; null: another warp goes on. Order of heads: q, k, v, index q, index k.
template <typename C>
__device__ __forceinline__ void finish_head(const Layer& layer, int row, int head,
                                            std::uint16_t* index_query, C&& columns) {
  const Params& p = shared().params;
  const Shape& s = p.shape;
  const StepRows& step = shared().step;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const std::uint16_t* norm = nullptr;
  int dim = head_dim_of(s);
  int from = 0;
  std::uint16_t* query = nullptr;  // of this lane's first column
  int query_step = 32;             // to its next one
  unsigned char* entry = nullptr;
  bool fp8 = kv_fp8_of(s) != 0;
  float scale = 1;
  const int position = step.position[row];
  const std::int64_t page = table_of(p, step, row)[position / kPageTokens];
  const int slot = position % kPageTokens;
  if (head < s.heads) {
    norm = layer.q_norm;
    from = s.q_at + head * dim;
    std::int64_t at = static_cast<std::int64_t>(row) * s.heads + head;
    if (kM3) {
      // Where attend_page() wants it.
      at = at * 128 - (head & 15) * 128 + (head & 7) * 256 + place_of_dim(head & 15, lane);
      query_step = 8;
    } else {
      at = at * dim + lane;
    }
    query = p.q + at;
  } else if ((head -= s.heads) < 2 * s.kv_heads) {
    const bool value = head >= s.kv_heads;
    if (value) head -= s.kv_heads;
    norm = value ? nullptr : layer.k_norm;
    from = (value ? s.v_at : s.k_at) + head * dim;
    scale = value ? s.v_scale : s.k_scale;
    entry = (value ? layer.v_cache : layer.k_cache) +
            ((page * s.kv_heads + head) * kPageTokens + slot) * dim * (fp8 ? 1 : 2);
  } else {
    head -= 2 * s.kv_heads;
    dim = index_dim_of(s);
    if (head < s.index_heads) {
      norm = layer.index_q_norm;
      from = s.index_q_at + head * dim;
      query = index_query + lane;
    } else {
      norm = layer.index_k_norm;
      from = s.index_k_at;
      scale = s.index_scale;
      fp8 = index_fp8_of(s) != 0;
      entry = layer.index_cache + (page * kPageTokens + slot) * dim * (fp8 ? 1 : 2);
    }
  }
  float v[4];
  float w[4] = {};
  float cosine[4] = {1, 1, 1, 1};
  float sine[4] = {};
  HeadNorm n{};
  const int half = rotary_of(s) / 2;
  float sum = 0;
  // What does not depend on the projections is asked for first.
  if (kM3) {
    if (norm != nullptr) n.load(norm, p.step->rope[row], lane);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = lane + 32 * i;
      if (norm == nullptr) continue;
      if (d < dim) w[i] = __uint_as_float(static_cast<std::uint32_t>(__ldg(norm + d)) << 16);
      if (d < 2 * half) {
        const float* rope = p.step->rope[row];
        cosine[i] = __ldg(rope + (d < half ? d : d - half));
        sine[i] = __ldg(rope + half + (d < half ? d : d - half));
      }
    }
  }
  float* const y = columns(from, dim);
  if (y == nullptr) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int d = lane + 32 * i;
    v[i] = d < dim ? y[d] : 0.0F;
  }
  if (kM3) {
    if (norm != nullptr) n.apply(v, s.eps);
  } else if (norm != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum = fmaf(v[i], v[i], sum);
    sum = warp_sum(sum);
    const float factor = norm_factor(sum, dim, s.eps);
    // Pairs lie `half` columns apart, in whatever lane.
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) y[lane + 32 * i] = (v[i] * factor) * (1.0F + w[i]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = lane + 32 * i;
      v[i] = y[d];
      if (d < half) {
        v[i] = y[d] * cosine[i] - y[d + half] * sine[i];
      } else if (d < 2 * half) {
        v[i] = y[d] * cosine[i] + y[d - half] * sine[i];
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int d = lane + 32 * i;
    if (d >= dim) continue;
    const bf16 rounded = __float2bfloat16_rn(v[i]);
    if (query != nullptr) {
      query[i * query_step] = scaled_bf16(v[i]);
    } else if (fp8) {
      entry[d] = __nv_cvt_float_to_fp8(__fdiv_rn(__bfloat162float(rounded), scale), __NV_SATFINITE,
                                       __NV_E4M3);
    } else {
      reinterpret_cast<std::uint16_t*>(entry)[d] = __bfloat16_as_ushort(rounded);
    }
  }
}

__device__ __forceinline__ void store_score(const Context& c, int row, int head, int group,
                                            float score) {
  c.p.scores[(static_cast<std::int64_t>(row) * c.p.shape.index_heads + head) * c.p.score_stride +
             group] = score;
}

// Largest dot product of 16 keys with each index query of a row, by one warp; `queries` in shared
// memory.
__device__ __forceinline__ void score_keys(Context& c, int row, int group,
                                           const std::uint16_t* queries) {
  const Shape& s = c.p.shape;
  const bool fp8 = index_fp8_of(s) != 0;
  const int g = c.lane >> 2;
  const int t = c.lane & 3;
  const int lane_dims = index_dim_of(s) / 4;
  const std::int64_t page = table_of(c.p, c.step(), row)[group / 8];
  const int bytes = fp8 ? 1 : 2;
  const unsigned char* key =
      c.layer().index_cache +
      ((page * kPageTokens + group % 8 * 16 + g) * index_dim_of(s) + t * lane_dims) * bytes;
  const std::uint16_t* q = queries + g * index_dim_of(s) + t * lane_dims;
  std::uint32_t low[4][4];
  std::uint32_t high[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (8 * i >= lane_dims) continue;
    load_octet(key + 8 * i * bytes, fp8, low[i]);
    load_octet(key + (8 * index_dim_of(s) + 8 * i) * bytes, fp8, high[i]);
  }
  float acc[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (8 * i >= lane_dims) continue;
    uint4 b = {0, 0, 0, 0};
    if (g < s.index_heads) b = *reinterpret_cast<const uint4*>(q + 8 * i);
    mma(acc, low[i][0], high[i][0], low[i][1], high[i][1], b.x, b.y);
    mma(acc, low[i][2], high[i][2], low[i][3], high[i][3], b.z, b.w);
  }
  best_of_keys(c, acc, fp8 ? kPostE4M3 : kPostBF16, c.step().position[row] + 1 - group * 16,
               [&](int head, float score) { store_score(c, row, head, group, score); });
}

// In the kernels for M3 of more rows than one, keys of a warp's next tasks are on their way into
// shared memory while it does something else: those of its first ones while it waits for the
// projections. They lie behind the index queries of all rows.
inline constexpr bool kStagesKeys = kM3 && !kOneRow;
inline constexpr int kKeyBuffers = key_buffers(kMostRows);  // of a warp
inline constexpr int kKeysBegin = kMostRows * kIndexQueryBytes;
__device__ __forceinline__ unsigned char* key_buffer(const Context& c, int which) {
  return c.x + kKeysBegin + (c.warp * kKeyBuffers + which) * kKeyGroupBytes;
}
// Task `task` of a block's share: a row and sixteen keys.
struct ScoreTask {
  int row, group;
  __device__ ScoreTask(int task, int groups)
      : row(row_of_task(task, groups)), group(task - row * groups) {}
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
__device__ __forceinline__ void start_keys_of(const Context& c, const ScoreTask& task, int which) {
  if (task.group > c.step().position[task.row] / 16) return;  // no such page
  load_keys(c, task.group, table_of(c.p, c.step(), task.row)[task.group / 8], key_buffer(c, which));
}
__device__ __forceinline__ Share score_share(const Context& c) {
  const StepRows& step = c.step();
  const bool score = (kM3 || c.layer().sparse != 0) && step.score != 0;
  return {score ? rows_of(step) * step.max_groups : 0, c.block, c.blocks};
}
// Keys of this warp's first tasks, a group of copies each, whoever still reads x having come first.
__device__ __forceinline__ void start_keys(const Context& c) {
  const Share mine = score_share(c);
  const int groups = c.step().max_groups;
  ScoreTask task(mine.begin + c.warp, groups);
  int group[kKeyBuffers];
  std::int64_t page[kKeyBuffers];  // all asked for before one is waited for; -1: no such task
#pragma unroll
  for (int k = 0; k < kKeyBuffers; ++k) {
    group[k] = task.group;
    page[k] = -1;
    if (mine.begin + c.warp + k * kWarps < mine.end && keys_are_old(c, task) &&
        task.group <= c.step().position[task.row] / 16)
      page[k] = __ldg(table_of(c.p, c.step(), task.row) + task.group / 8);
    task = task.after(kWarps, groups);
  }
#pragma unroll
  for (int k = 0; k < kKeyBuffers; ++k) {
    if (page[k] >= 0) load_keys(c, group[k], page[k], key_buffer(c, k));
    commit_copies();
  }
}
// Scores of all tasks of a block, whose first keys were started before its new keys were made.
__device__ __forceinline__ void score_tasks(const Context& c, int first_row,
                                            const std::uint16_t* queries) {
  const StepRows& step = c.step();
  const Share mine = score_share(c);
  const int groups = step.max_groups;
  ScoreTask t(mine.begin + c.warp, groups);
  {
    ScoreTask start = t;
#pragma unroll 1
    for (int k = 0; k < kKeyBuffers; ++k) {
      if (mine.begin + c.warp + k * kWarps >= mine.end) break;
      // Waited for by whoever takes the first task, with all others before it.
      if (!keys_are_old(c, start)) start_keys_of(c, start, k);
      start = start.after(kWarps, groups);
    }
  }
  bool first = true;
  int which = 0;
#pragma unroll 1
  for (int task = mine.begin + c.warp; task < mine.end; task += kWarps) {
    if (first) {
      wait_copies();
    } else {
      wait_groups<kKeyBuffers - 1>();
    }
    first = false;
    __syncwarp();
    const GroupOfKeys keys(c, key_buffer(c, which));
    __syncwarp();
    if (task + kKeyBuffers * kWarps < mine.end)
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

// Queries, keys and values of all rows are dealt out over the blocks. A block scores a contiguous
// run of (row, 16 keys); it makes the index queries of its rows itself, and whatever index key of
// this step lies in its run (several blocks may store the same bytes), so scoring waits for no
// other block. `WORDS`: the projections are words.
template <bool WORDS>
__device__ __forceinline__ void heads_stage(Context& c) {
  const Shape& s = c.p.shape;
  const Layer& layer = c.layer();
  const StepRows& step = c.step();
  const bool sparse = kM3 || layer.sparse != 0;
  const bool score = sparse && step.score != 0;
  const int groups = step.max_groups;
  const int first_index = s.heads + 2 * s.kv_heads;
  const Share mine = score_share(c);
  const int first_row = mine.count() > 0 ? row_of_task(mine.begin, groups) : 0;
  const int end_row = mine.count() > 0 ? row_of_task(mine.end - 1, groups) + 1 : 0;
  auto* queries = reinterpret_cast<std::uint16_t*>(c.x);  // [row][index head][dim]
  const int per_query = index_dim_of(s);
  // Jobs of this block: index queries, queries, keys and values, index keys.
  const int index_jobs = (end_row - first_row) * s.index_heads;
  const int per_row = first_index + (sparse && !score ? 1 : 0);
  const int all = rows_of(step) * per_row;
  const int head_jobs = over_blocks(all - c.block + c.blocks - 1);
  const int key_jobs = score ? rows_of(step) : 0;
  const int jobs = index_jobs + head_jobs + key_jobs;
  struct Job {
    int row, head;  // head -1: no such job
    std::uint16_t* query;
  };
  const auto job_at = [&](int job) -> Job {
    if (job < index_jobs) {
      const int own = row_of_head_task(job, s.index_heads);
      return {first_row + own, first_index + job - own * s.index_heads, queries + job * per_query};
    }
    if (job < index_jobs + head_jobs) {
      const int task = c.block + (job - index_jobs) * c.blocks;
      const int row = row_of_task(task, per_row);
      const int head = task - row * per_row;
      return {row, head == first_index ? head + s.index_heads : head, nullptr};
    }
    const int row = job - index_jobs - head_jobs;
    const int group = step.position[row] / 16;
    bool here = false;
    for (int r = first_row; r < end_row; ++r) {
      const int at = r * groups + group;
      here |= step.table[r] == step.table[row] && at >= mine.begin && at < mine.end;
    }
    return {row, here ? first_index + s.index_heads : -1, nullptr};
  };
  if constexpr (WORDS) {
    // Two warps a job take its columns, one finishes it.
    constexpr int kTogether = kWarps / 2;
    float* const y = c.red + (c.warp >> 1) * 128;
#pragma unroll 1
    for (int base = 0; base < jobs; base += kTogether) {
      if (base > 0) sync(c);
      const int at = base + (c.warp >> 1);
      Job job = at < jobs ? job_at(at) : Job{0, -1, nullptr};
      const bool there = job.head >= 0;
      // All warps meet in one place: those without a job go there with one of which they take
      // nothing.
      if (!there) job = {0, 0, nullptr};
      finish_head(layer, job.row, job.head, job.query, [&](int from, int) {
        if (there) take_columns(c, job.row, from, c.warp & 1, y);
        sync(c);
        return there && (c.warp & 1) == 0 ? y : nullptr;
      });
    }
  } else {
    float* const y = c.red + c.warp * 128;
#pragma unroll 1
    for (int at = c.warp; at < jobs; at += kWarps) {
      const Job job = job_at(at);
      if (job.head < 0) continue;
      finish_head(layer, job.row, job.head, job.query, [&](int from, int dim) {
        load_columns(layer, job.row, from, dim, y);
        return y;
      });
    }
  }
  sync(c);
  if (WORDS && c.thread == 0) stamp(layer_of(c), kHeads, 0);
  if constexpr (kStagesKeys) {
    score_tasks(c, first_row, queries);
  } else {
#pragma unroll 1
    for (int task = mine.begin + c.warp; task < mine.end; task += kWarps) {
      const int row = row_of_task(task, groups);
      const int group = task - row * groups;
      if (group <= step.position[row] / 16) {
        score_keys(c, row, group, queries + (row - first_row) * s.index_heads * per_query);
      }
    }
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

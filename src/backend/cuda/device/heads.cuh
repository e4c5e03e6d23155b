// Heads, caches and index scores of one layer: everything between the projections and the choice
// of blocks, in one stage.
#pragma once

#include "backend/cuda/device/attend_page.cuh"
#include "backend/cuda/device/m3_heads.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// One head of one row by one warp: norm, rotation, the one rounding; queries to memory, index
// queries to shared memory, keys and values to the caches. `y`: shared memory for its columns.
// Order of heads: q, k, v, index q, index k.
__device__ __forceinline__ void finish_head(const Layer& layer, int row, int head,
                                            std::uint16_t* index_query, float* y) {
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
  bool half_queries = false;
  float scale = 1;
  const int position = step.position[row];
  const std::int64_t page = table_of(p, step, row)[position / kPageTokens];
  const int slot = position % kPageTokens;
  if (head < s.heads) {
    norm = layer.q_norm;
    from = s.q_at + head * dim;
    if constexpr (kDenseM3) {
      // Where attend_page() wants them: in pairs of heads eight apart.
      const int of_group = head & 15;
      query = p.q + (static_cast<std::int64_t>(row) * s.heads + head - of_group) * dim +
              (of_group & 7) * 2 * dim + place_of_dim(of_group, lane);
      query_step = place_of_dim(0, 32);
    } else {
      query = p.q + (static_cast<std::int64_t>(row) * s.heads + head) * dim + lane;
    }
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
      half_queries = index_queries_are_half(s, layer);
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
  const int half = rotary_of(s) / 2;
  float sum = 0;
  // What does not depend on the projections is asked for first.
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
  load_columns(layer, row, from, dim, y);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int d = lane + 32 * i;
    v[i] = d < dim ? y[d] : 0.0F;
  }
  if (norm != nullptr) {
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
      query[i * query_step] =
          half_queries ? scaled_half(v[i], layer.index_q_scale) : scaled_bf16(v[i]);
    } else if (fp8) {
      entry[d] = __nv_cvt_float_to_fp8(__fdiv_rn(__bfloat162float(rounded), scale), __NV_SATFINITE,
                                       __NV_E4M3);
    } else {
      reinterpret_cast<std::uint16_t*>(entry)[d] = __bfloat16_as_ushort(rounded);
    }
  }
}

// Queries, keys and values of all rows are dealt out over the blocks. A block scores a contiguous
// run of (row, 16 keys); it makes the index queries of its rows itself, and whatever index key of
// this step lies in its run (several blocks may store the same bytes), so scoring waits for no
// other block. `WORDS`: the projections are words.
template <bool WORDS>
__device__ __forceinline__ void heads_stage(Context& c) {
  if constexpr (kM3) {
    planned_heads<WORDS>(c);
    return;
  }
  const Shape& s = c.p.shape;
  const Layer& layer = c.layer();
  const StepRows& step = c.step();
  const bool sparse = is_sparse(layer);
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
  float* const y = c.red + c.warp * 128;
#pragma unroll 1
  for (int at = c.warp; at < jobs; at += kWarps) {
    const Job job = job_at(at);
    if (job.head < 0) continue;
    finish_head(layer, job.row, job.head, job.query, y);
  }
  sync(c);
#pragma unroll 1
  for (int task = mine.begin + c.warp; task < mine.end; task += kWarps) {
    const int row = row_of_task(task, groups);
    const int group = task - row * groups;
    if (group <= step.position[row] / 16) {
      score_keys(c, row, group, queries + (row - first_row) * s.index_heads * per_query);
    }
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

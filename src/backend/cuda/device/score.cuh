// What a head's columns are made of, and index scores of any shape: what heads.cuh and m3_heads.cuh
// share.
#pragma once

#include "backend/cuda/device/index_keys.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

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
    if (kM3Sizes || layer.qkv.row_scale != nullptr) {
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

__device__ __forceinline__ Share score_share(const Context& c) {
  const StepRows& step = c.step();
  const bool score = is_sparse(c.layer()) && step.score != 0;
  return {score ? rows_of(step) * step.max_groups : 0, c.block, c.blocks};
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
  const bool half = index_queries_are_half(s, c.layer());
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
    const unsigned char* second = key + 8 * index_dim_of(s) * bytes;
    if (half) {
      load_octet_of_halves(key + 8 * i, low[i]);
      load_octet_of_halves(second + 8 * i, high[i]);
    } else {
      load_octet(key + 8 * i * bytes, fp8, low[i]);
      load_octet(second + 8 * i * bytes, fp8, high[i]);
    }
  }
  float acc[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (8 * i >= lane_dims) continue;
    uint4 b = {0, 0, 0, 0};
    if (g < s.index_heads) b = *reinterpret_cast<const uint4*>(q + 8 * i);
    if (half) {
      mma_half(acc, low[i][0], high[i][0], low[i][1], high[i][1], b.x, b.y);
      mma_half(acc, low[i][2], high[i][2], low[i][3], high[i][3], b.z, b.w);
    } else {
      mma(acc, low[i][0], high[i][0], low[i][1], high[i][1], b.x, b.y);
      mma(acc, low[i][2], high[i][2], low[i][3], high[i][3], b.z, b.w);
    }
  }
  const float post = half ? inverse_power(c.layer().index_q_scale) : fp8 ? kPostE4M3 : kPostBF16;
  best_of_keys(c, acc, post, c.step().position[row] + 1 - group * 16,
               [&](int head, float score) { store_score(c, row, head, group, score); });
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

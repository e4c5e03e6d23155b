// Heads, caches, index scores, choice of blocks and attention of one layer.
#pragma once

#include "backend/cuda/device/rows.cuh"

namespace monolayer::cuda {

__device__ __forceinline__ const std::int32_t* table_of(const Params& p, const StepRows& step,
                                                        int row) {
  return p.pages + static_cast<std::int64_t>(step.table[row]) * p.table_stride;
}

// One head of one row by one warp: norm, rotation, the one rounding; queries to memory, keys and
// values to the caches. Order of heads: q, k, v, index q, index k.
__device__ __forceinline__ void finish_head(Context& c, int row, int head) {
  const Shape& s = c.p.shape;
  const Layer& layer = c.layer();
  const std::uint16_t* norm = nullptr;
  int dim = s.head_dim;
  int from = 0;
  std::uint16_t* query = nullptr;
  unsigned char* entry = nullptr;
  bool fp8 = s.kv_fp8 != 0;
  float scale = 1;
  const int position = c.step().position[row];
  const std::int64_t page = table_of(c.p, c.step(), row)[position / kPageTokens];
  const int slot = position % kPageTokens;
  if (head < s.heads) {
    norm = layer.q_norm;
    from = s.q_at + head * dim;
    query = c.p.q + (static_cast<std::int64_t>(row) * s.heads + head) * dim;
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
    dim = s.index_dim;
    if (head < s.index_heads) {
      norm = layer.index_q_norm;
      from = s.index_q_at + head * dim;
      query = c.p.index_q + (static_cast<std::int64_t>(row) * s.index_heads + head) * dim;
    } else {
      norm = layer.index_k_norm;
      from = s.index_k_at;
      scale = s.index_scale;
      fp8 = s.index_fp8 != 0;
      entry = layer.index_cache + (page * kPageTokens + slot) * dim * (fp8 ? 1 : 2);
    }
  }
  const float* x = c.p.projected + static_cast<std::int64_t>(row) * s.projected + from;
  float* y = reinterpret_cast<float*>(c.s.scratch) + c.warp * 128;
  float v[4];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int d = c.lane + 32 * i;
    v[i] = d < dim ? load_l2(x + d) : 0.0F;
    sum = fmaf(v[i], v[i], sum);
  }
  if (norm != nullptr) {
    sum = warp_sum(sum);
    const float factor =
        __fdiv_rn(1.0F, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(dim)) + s.eps));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = c.lane + 32 * i;
      if (d < dim) {
        y[d] =
            (v[i] * factor) * (1.0F + __uint_as_float(static_cast<std::uint32_t>(norm[d]) << 16));
      }
    }
    __syncwarp();
    const int half = s.rotary / 2;
    const float* cosine = c.p.step->rope[row];
    const float* sine = cosine + half;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = c.lane + 32 * i;
      if (d >= dim) continue;
      v[i] = y[d];
      if (d < half) {
        v[i] = y[d] * cosine[d] - y[d + half] * sine[d];
      } else if (d < 2 * half) {
        v[i] = y[d] * cosine[d - half] + y[d - half] * sine[d - half];
      }
    }
    __syncwarp();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int d = c.lane + 32 * i;
    if (d >= dim) continue;
    const bf16 rounded = __float2bfloat16_rn(v[i]);
    if (query != nullptr) {
      query[d] = __bfloat16_as_ushort(rounded);
    } else if (fp8) {
      entry[d] = __nv_cvt_float_to_fp8(__fdiv_rn(__bfloat162float(rounded), scale), __NV_SATFINITE,
                                       __NV_E4M3);
    } else {
      reinterpret_cast<std::uint16_t*>(entry)[d] = __bfloat16_as_ushort(rounded);
    }
  }
}

__device__ __forceinline__ void heads_stage(Context& c) {
  const Shape& s = c.p.shape;
  const int per_row = s.heads + 2 * s.kv_heads + (c.layer().sparse != 0 ? s.index_heads + 1 : 0);
  sync(c);
  for (int task = c.warp * c.blocks + c.block; task < c.step().rows * per_row;
       task += c.blocks * kWarps) {
    finish_head(c, task / per_row, task % per_row);
  }
}

// Largest dot product of 16 keys with each index query of a row, by one warp.
__device__ __forceinline__ void score_keys(Context& c, int row, int group) {
  const Shape& s = c.p.shape;
  const bool fp8 = s.index_fp8 != 0;
  const int g = c.lane >> 2;
  const int t = c.lane & 3;
  const int lane_dims = s.index_dim / 4;
  const std::int64_t page = table_of(c.p, c.step(), row)[group / 8];
  const int bytes = fp8 ? 1 : 2;
  const unsigned char* key =
      c.layer().index_cache +
      ((page * kPageTokens + group % 8 * 16 + g) * s.index_dim + t * lane_dims) * bytes;
  const std::uint16_t* q = c.p.index_q +
                           (static_cast<std::int64_t>(row) * s.index_heads + g) * s.index_dim +
                           t * lane_dims;
  float acc[4] = {};
#pragma unroll 2
  for (int d = 0; d < lane_dims; d += 8) {
    std::uint32_t low[4];
    std::uint32_t high[4];
    load_octet(key + d * bytes, fp8, low);
    load_octet(key + (8 * s.index_dim + d) * bytes, fp8, high);
    uint4 b = {0, 0, 0, 0};
    if (g < s.index_heads) b = scale_up(load_l2(q + d));
    mma(acc, low[0], high[0], low[1], high[1], b.x, b.y);
    mma(acc, low[2], high[2], low[3], high[3], b.z, b.w);
  }
  const float post = fp8 ? kPostE4M3 : kPostBF16;
  const int visible = c.step().position[row] + 1 - group * 16;
  float best[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float a = acc[i] * post;
    float b = acc[2 + i] * post;
    a = a != a ? -1e30F : a;
    b = b != b ? -1e30F : b;
    best[i] = g < visible ? a : -INFINITY;
    if (g + 8 < visible && best[i] < b) best[i] = b;
#pragma unroll
    for (int d = 4; d < 32; d <<= 1) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, best[i], d);
      best[i] = best[i] < other ? other : best[i];
    }
    const int head = 2 * t + i;
    if (g == 0 && head < s.index_heads) {
      c.p.scores[(static_cast<std::int64_t>(row) * s.index_heads + head) * c.p.score_stride +
                 group] = best[i] + 0.0F;
    }
  }
}

__device__ __forceinline__ void score_stage(Context& c) {
  if (c.step().score == 0) return;
  const int groups = c.step().max_groups;
  for (int task = c.warp * c.blocks + c.block; task < c.step().rows * groups;
       task += c.blocks * kWarps) {
    const int row = task / groups;
    const int group = task % groups;
    if (group <= c.step().position[row] / 16) score_keys(c, row, group);
  }
}

// What a block is chosen by, larger first: forced blocks above all, then the score, the lower id
// among equals; no two are the same.
__device__ __forceinline__ std::uint64_t block_key(const Context& c, const float* scores, int block,
                                                   int blocks, int last_group) {
  const Shape& s = c.p.shape;
  std::uint32_t order = 0;
  std::uint32_t tie = 0xFFFFFFFFU - static_cast<std::uint32_t>(block);
  if (block >= blocks - min(s.local_blocks, blocks)) {
    order = 0xFFFFFFFFU;
    tie = static_cast<std::uint32_t>(block);  // the nearest counts most
  } else if (block < s.init_blocks) {
    order = 0xFFFFFFFEU;
  } else {
    const int per_block = s.block_size / 16;
    float best = -INFINITY;
    const int first = block * per_block;
    const int count = min(per_block, last_group + 1 - first);
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = i < count ? load_l2(scores + first + i) : -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) best = best < v[i] ? v[i] : best;
    const std::uint32_t bits = __float_as_uint(best + 0.0F);
    order = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
    order = min(order, 0xFFFFFFFDU);
  }
  return static_cast<std::uint64_t>(order) << 32 | tie;
}

// Chosen blocks of (row, head), ascending, in s.selected; returns how many. All computing warps.
__device__ __forceinline__ int select_blocks(Context& c, int row, int head) {
  const Shape& s = c.p.shape;
  const int position = c.step().position[row];
  const int blocks = position / s.block_size + 1;
  if (blocks <= s.topk) {
    sync(c);
    if (c.thread < blocks) c.s.selected[c.thread] = c.thread;
    sync(c);
    return blocks;
  }
  const float* scores =
      c.p.scores + (static_cast<std::int64_t>(row) * s.index_heads + head) * c.p.score_stride;
  auto* keys = reinterpret_cast<std::uint64_t*>(c.s.scratch);
  constexpr int kRanked = 1024;
  auto* chosen = keys + kRanked;  // kMaxTopBlocks ids, then the warps' best
  sync(c);
  if (blocks <= kRanked) {
    for (int b = c.thread; b < blocks; b += kThreads) {
      keys[b] = block_key(c, scores, b, blocks, position / 16);
    }
    sync(c);
    for (int b = c.thread; b < blocks; b += kThreads) {
      const std::uint64_t mine = keys[b];
      int rank = 0;
      for (int i = 0; i < blocks; ++i) rank += keys[i] > mine ? 1 : 0;
      if (rank < s.topk) chosen[rank] = static_cast<std::uint64_t>(b);
    }
    sync(c);
  } else {
    // One round per block: the best of those below the last one taken.
    std::uint64_t bound = ~0ULL;
    auto* best_of_warp = chosen + kMaxTopBlocks;
    for (int k = 0; k < s.topk; ++k) {
      std::uint64_t best = 0;
      for (int b = c.thread; b < blocks; b += kThreads) {
        const std::uint64_t key = block_key(c, scores, b, blocks, position / 16);
        if (key < bound && key > best) best = key;
      }
#pragma unroll
      for (int d = 16; d > 0; d >>= 1) {
        const std::uint64_t other = __shfl_xor_sync(0xFFFFFFFFU, best, d);
        best = other > best ? other : best;
      }
      if (c.lane == 0) best_of_warp[c.warp] = best;
      sync(c);
      for (int w = 0; w < kWarps; ++w) best = best_of_warp[w] > best ? best_of_warp[w] : best;
      bound = best;
      const auto tie = static_cast<std::uint32_t>(best);
      if (c.thread == 0) {
        chosen[k] = best >> 32 == 0xFFFFFFFFU ? tie : 0xFFFFFFFFU - tie;
      }
      sync(c);
    }
  }
  if (c.thread < s.topk) {
    const std::uint64_t mine = chosen[c.thread];
    int rank = 0;
    for (int i = 0; i < s.topk; ++i) rank += chosen[i] < mine ? 1 : 0;
    c.s.selected[rank] = static_cast<std::int32_t>(mine);
  }
  sync(c);
  return s.topk;
}

// Layout of a partial: group x head_dim values, then maxima, then sums.
__device__ __forceinline__ float* partial_at(const Params& p, int row, int head, int chunk) {
  const Shape& s = p.shape;
  return p.partials +
         ((static_cast<std::int64_t>(row) * s.kv_heads + head) * p.max_chunks + chunk) * s.group *
             (s.head_dim + 2);
}

// One chunk of up to 128 keys in one page for all query heads of a KV head: scores, exponentials,
// weighted values, unnormalised. Warp w scores keys 16 w and weights dims 16 w.
__device__ __forceinline__ void attend_chunk(Context& c, int row, int head, int chunk,
                                             int first_key, int keys) {
  const Shape& s = c.p.shape;
  const bool fp8 = s.kv_fp8 != 0;
  const int bytes = fp8 ? 1 : 2;
  const int dim = s.head_dim;
  const int g = c.lane >> 2;
  const int t = c.lane & 3;
  const std::int64_t page = table_of(c.p, c.step(), row)[first_key / kPageTokens];
  const std::int64_t base =
      ((page * s.kv_heads + head) * kPageTokens + first_key % kPageTokens) * dim * bytes;
  const unsigned char* k = c.layer().k_cache + base;
  const unsigned char* v = c.layer().v_cache + base;
  const int padded = (keys + 15) / 16 * 16;
  constexpr int kScoreStride = 132;
  constexpr int kProbStride = 136;
  auto* scores = reinterpret_cast<float*>(c.s.scratch);                        // [16][132]
  auto* probs = reinterpret_cast<std::uint16_t*>(scores + 16 * kScoreStride);  // [16][136]
  const int v_row = dim * bytes + 16;

  // Values of keys past the end are zeros, whatever the page holds.
  const int row_vectors = dim * bytes / 16;
  for (int i = c.thread; i < padded * row_vectors; i += kThreads) {
    const int key = i / row_vectors;
    const int at = i % row_vectors * 16;
    uint4 value = {0, 0, 0, 0};
    if (key < keys) value = load_l2(v + key * dim * bytes + at);
    *reinterpret_cast<uint4*>(c.x + key * v_row + at) = value;
  }

  if (c.warp * 16 < padded) {
    const int lane_dims = dim / 4;
    const std::uint16_t* q =
        c.p.q + (static_cast<std::int64_t>(row) * s.heads + head * s.group) * dim + t * lane_dims;
    const unsigned char* key0 = k + ((c.warp * 16 + g) * dim + t * lane_dims) * bytes;
    const unsigned char* key1 = key0 + 8 * dim * bytes;
    float low[4] = {};
    float high[4] = {};
#pragma unroll 2
    for (int d = 0; d < lane_dims; d += 8) {
      uint4 q0 = {0, 0, 0, 0};
      uint4 q1 = {0, 0, 0, 0};
      if (g < s.group) q0 = scale_up(load_l2(q + g * dim + d));
      if (g + 8 < s.group) q1 = scale_up(load_l2(q + (g + 8) * dim + d));
      std::uint32_t b0[4];
      std::uint32_t b1[4];
      load_octet(key0 + d * bytes, fp8, b0);
      load_octet(key1 + d * bytes, fp8, b1);
      mma(low, q0.x, q1.x, q0.y, q1.y, b0[0], b0[1]);
      mma(low, q0.z, q1.z, q0.w, q1.w, b0[2], b0[3]);
      mma(high, q0.x, q1.x, q0.y, q1.y, b1[0], b1[1]);
      mma(high, q0.z, q1.z, q0.w, q1.w, b1[2], b1[3]);
    }
    const float post = fp8 ? kPostE4M3 : kPostBF16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* out = scores + (g + i / 2 * 8) * kScoreStride + c.warp * 16 + 2 * t + i % 2;
      out[0] = (low[i] * post) * s.score_scale;
      out[8] = (high[i] * post) * s.score_scale;
    }
  }
  sync(c);
  float* partial = partial_at(c.p, row, head, chunk);
  for (int h = c.warp; h < 16; h += kWarps) {
    float value[4];
    float best = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = c.lane + 32 * i;
      value[i] = key < keys && h < s.group ? scores[h * kScoreStride + key] : -INFINITY;
      best = best < value[i] ? value[i] : best;
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, best, d);
      best = best < other ? other : best;
    }
    best += 0.0F;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = c.lane + 32 * i;
      float e = 0;
      if (key < keys && h < s.group) e = exponential(value[i] - best);
      sum += e;
      probs[h * kProbStride + key] =
          __bfloat16_as_ushort(__float2bfloat16_rn(e * kActivationScale));
    }
    sum = warp_sum(sum);
    if (c.lane == 0 && h < s.group) {
      partial[s.group * dim + h] = best;
      partial[s.group * (dim + 1) + h] = sum;
    }
  }
  sync(c);
  if (c.warp * 16 < dim) {
    float even[4] = {};  // dims 16 w + 2 n
    float odd[4] = {};   // and one more
    const int at = (c.warp * 16 + 2 * g) * bytes;
    for (int step = 0; step < padded; step += 16) {
      const std::uint16_t* p0 = probs + g * kProbStride + step + 4 * t;
      const std::uint16_t* p1 = p0 + 8 * kProbStride;
      const uint2 a0 = *reinterpret_cast<const uint2*>(p0);
      const uint2 a1 = *reinterpret_cast<const uint2*>(p1);
      std::uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned char* from = c.x + (step + 4 * t + i) * v_row + at;
        w[i] = fp8 ? *reinterpret_cast<const std::uint16_t*>(from)
                   : *reinterpret_cast<const std::uint32_t*>(from);
      }
      std::uint32_t e0, o0, e1, o1;
      if (fp8) {
        decode_e4m3(w[0] | w[1] << 16, e0, o0);
        decode_e4m3(w[2] | w[3] << 16, e1, o1);
      } else {
        e0 = __byte_perm(w[0], w[1], 0x5410);
        o0 = __byte_perm(w[0], w[1], 0x7632);
        e1 = __byte_perm(w[2], w[3], 0x5410);
        o1 = __byte_perm(w[2], w[3], 0x7632);
      }
      mma(even, a0.x, a1.x, a0.y, a1.y, e0, e1);
      mma(odd, a0.x, a1.x, a0.y, a1.y, o0, o1);
    }
    const float post = fp8 ? kPostE4M3 : kPostBF16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Column n of the two products is dim 16 w + 2 n and one more.
      const int h = g + i / 2 * 8;
      const int d = c.warp * 16 + 2 * (2 * t + i % 2);
      if (h >= s.group) continue;
      partial[h * dim + d] = even[i] * post;
      partial[h * dim + d + 1] = odd[i] * post;
    }
  }
  sync(c);
}

__device__ __forceinline__ void attend_stage(Context& c) {
  const Shape& s = c.p.shape;
  const bool sparse = c.layer().sparse != 0;
  const int chunks = c.step().max_chunks[sparse ? 1 : 0];
  const int units = c.step().rows * s.kv_heads * chunks;
  for (int unit = c.block; unit < units; unit += c.blocks) {
    const int chunk = unit % chunks;
    const int head = unit / chunks % s.kv_heads;
    const int row = unit / chunks / s.kv_heads;
    const int position = c.step().position[row];
    int first = chunk * kPageTokens;
    int size = kPageTokens;
    if (sparse) {
      if (chunk >= min(s.topk, position / s.block_size + 1)) continue;
      const int count = select_blocks(c, row, head);
      first = c.s.selected[chunk] * s.block_size;
      size = s.block_size;
      if (chunk == 0 && c.thread < count) {
        c.p.block_ids[(row * s.index_heads + head) * s.topk + c.thread] = c.s.selected[c.thread];
      }
    } else if (first > position) {
      continue;
    }
    attend_chunk(c, row, head, chunk, first, min(size, position + 1 - first));
  }
}

// Partials of a (row, head) in ascending order, by one warp.
__device__ __forceinline__ void merge_stage(Context& c) {
  const Shape& s = c.p.shape;
  const bool sparse = c.layer().sparse != 0;
  const int dim = s.head_dim;
  for (int task = c.warp * c.blocks + c.block; task < c.step().rows * s.heads;
       task += c.blocks * kWarps) {
    const int row = task / s.heads;
    const int head = task % s.heads / s.group;
    const int h = task % s.heads % s.group;
    const int position = c.step().position[row];
    const int chunks =
        sparse ? min(s.topk, position / s.block_size + 1) : position / kPageTokens + 1;
    const std::int64_t stride = static_cast<std::int64_t>(s.group) * (dim + 2);
    const float* partial = partial_at(c.p, row, head, 0);
    float value[4] = {};
    float maximum = 0;
    float sum = 0;
    // Lane i keeps maximum and sum of chunk base + i; values two chunks ahead.
    float next[2][4];
    const auto load = [&](int chunk, float(&to)[4]) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int d = c.lane + 32 * k;
        to[k] = chunk < chunks && d < dim ? load_l2(partial + chunk * stride + h * dim + d) : 0.0F;
      }
    };
    load(0, next[0]);
    load(1, next[1]);
    float m = 0;
    float l = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (chunk % 32 == 0) {
        const float* p = partial + (chunk + c.lane) * stride + s.group * dim + h;
        const bool there = chunk + c.lane < chunks;
        m = there ? load_l2(p) : 0.0F;
        l = there ? load_l2(p + s.group) : 0.0F;
      }
      const float own_m = __shfl_sync(0xFFFFFFFFU, m, chunk % 32);
      const float own_l = __shfl_sync(0xFFFFFFFFU, l, chunk % 32);
      float o[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        o[k] = next[0][k];
        next[0][k] = next[1][k];
      }
      load(chunk + 2, next[1]);
      if (chunk == 0) {
        maximum = own_m;
        sum = own_l;
#pragma unroll
        for (int k = 0; k < 4; ++k) value[k] = o[k];
        continue;
      }
      const float largest = maximum < own_m ? own_m : maximum;
      const float keep = exponential(maximum - largest);
      const float add = exponential(own_m - largest);
      sum = sum * keep + own_l * add;
#pragma unroll
      for (int k = 0; k < 4; ++k) value[k] = value[k] * keep + o[k] * add;
      maximum = largest;
    }
    std::uint16_t* out = c.p.attended + static_cast<std::int64_t>(task) * dim;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int d = c.lane + 32 * k;
      if (d >= dim) continue;
      out[d] = __bfloat16_as_ushort(__float2bfloat16_rn(__fdiv_rn(value[k], sum) * s.v_scale));
    }
  }
}

}  // namespace monolayer::cuda

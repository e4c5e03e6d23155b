// Attention of one layer: chunks of keys, then their merge.
#pragma once

#include "backend/cuda/device/dense_attention.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

inline constexpr int kProbStride = 136;
inline constexpr int kQueryStride = 136;
static_assert(16 * (kScoreStride * 4 + kProbStride * 2 + kQueryStride * 2) <= kAttentionScratch);

// What chunks of a partial have given so far: of head `warp`; of a lane's heads and dims.
struct ChunkSums {
  float maximum, total;
  float even[4], odd[4];
};
// One chunk of up to 128 keys in one page for all query heads of a KV head: scores, exponentials,
// weighted values, unnormalised. Everything is fetched at once; warp w scores keys 8 w, does the
// exponentials of head w and, up to warp 7, weights dims 16 w. Of its partial it is the first chunk
// or is added to `sums`, and it is the last or leaves them.
__device__ __forceinline__ void attend_chunk(Context& c, int row, int head, int chunk,
                                             int first_key, int keys, std::int64_t page, bool first,
                                             bool last, ChunkSums& sums) {
  const Shape& s = c.p.shape;
  const bool fp8 = kv_fp8_of(s) != 0;
  const int bytes = fp8 ? 1 : 2;
  const int dim = head_dim_of(s);
  const int g = c.lane >> 2;
  const int t = c.lane & 3;
  const int lane_dims = dim / 4;
  const std::int64_t base =
      ((page * s.kv_heads + head) * kPageTokens + first_key % kPageTokens) * dim * bytes;
  const unsigned char* k = c.layer().k_cache + base;
  const unsigned char* v = c.layer().v_cache + base;
  const int padded = (keys + 15) / 16 * 16;
  const int v_row = value_row_bytes(head_dim_of(s), kv_fp8_of(s) != 0);
  auto* scores = reinterpret_cast<float*>(c.x + kPageTokens * v_row);          // [16][132]
  auto* probs = reinterpret_cast<std::uint16_t*>(scores + 16 * kScoreStride);  // [16][136]
  auto* queries = probs + 16 * kProbStride;                                    // [16][136]

  // Values of keys past the end are zeros, whatever the page holds.
  const int row_vectors = dim * bytes / 16;
#pragma unroll 1
  for (int i = c.thread; i < padded * row_vectors; i += kThreads) {
    const int key = i / row_vectors;
    const int at = (i - key * row_vectors) * 16;
    auto* to = reinterpret_cast<uint4*>(c.x + key * v_row + at);
    if (key < keys) {
      copy_async(to, v + key * dim * bytes + at);
    } else {
      *to = {0, 0, 0, 0};
    }
  }
#pragma unroll 1
  for (int i = c.thread; i < 2 * dim; i += kThreads) {
    const int h = i / (dim / 8);
    const int at = (i - h * (dim / 8)) * 8;
    auto* to = reinterpret_cast<uint4*>(queries + h * kQueryStride + at);
    if (h < group_of(s)) {
      copy_async(
          to,
          c.p.q + (static_cast<std::int64_t>(row) * s.heads + head * group_of(s) + h) * dim + at);
    } else {
      *to = {0, 0, 0, 0};
    }
  }
  const bool scores_keys = c.warp * 8 < padded;
  std::uint32_t b[4][4];
  if (scores_keys) {
    const unsigned char* key = k + ((c.warp * 8 + g) * dim + t * lane_dims) * bytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (8 * i < lane_dims) load_octet(key + 8 * i * bytes, fp8, b[i]);
    }
  }
  wait_copies();
  sync(c);
  if (scores_keys) {
    float acc[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (8 * i >= lane_dims) continue;
      const std::uint16_t* q = queries + g * kQueryStride + t * lane_dims + 8 * i;
      const uint4 q0 = *reinterpret_cast<const uint4*>(q);
      const uint4 q1 = *reinterpret_cast<const uint4*>(q + 8 * kQueryStride);
      mma(acc, q0.x, q1.x, q0.y, q1.y, b[i][0], b[i][1]);
      mma(acc, q0.z, q1.z, q0.w, q1.w, b[i][2], b[i][3]);
    }
    const float post = fp8 ? kPostE4M3 : kPostBF16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[(g + i / 2 * 8) * kScoreStride + c.warp * 8 + 2 * t + i % 2] =
          (acc[i] * post) * s.score_scale;
    }
  }
  sync(c);
  float* partial = partial_at(c.p, row, head, chunk);
  auto* factors = reinterpret_cast<ChunkFactors*>(c.red);  // [16]
  {
    const int h = c.warp;
    float value[4];
    float best = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = c.lane + 32 * i;
      value[i] = key < keys && h < group_of(s) ? scores[h * kScoreStride + key] : -INFINITY;
      best = best < value[i] ? value[i] : best;
    }
    best = warp_max(best) + 0.0F;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = c.lane + 32 * i;
      float e = 0;
      if (key < keys && h < group_of(s)) e = exponential(value[i] - best);
      sum += e;
      probs[h * kProbStride + key] = scaled_bf16(e);
    }
    sum = warp_sum(sum);
    if (first) {
      sums.maximum = best;
      sums.total = sum;
    } else {
      const ChunkFactors f = add_chunk(sums.maximum, sums.total, best, sum);
      if (c.lane == 0) factors[h] = f;
    }
    if (last && c.lane == 0 && h < group_of(s)) {
      partial[group_of(s) * dim + h] = sums.maximum;
      partial[group_of(s) * (dim + 1) + h] = sums.total;
    }
  }
  sync(c);
  if (c.warp * 16 < dim) {
    float even[4] = {};  // dims 16 w + 2 n
    float odd[4] = {};   // and one more
    const int at = (c.warp * 16 + 2 * g) * bytes;
#pragma unroll 2
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
      if (h >= group_of(s)) continue;
      const ChunkFactors f = first ? ChunkFactors{} : factors[h];
      const auto add = [&](float& to, float v) { to = first ? v : to * f.keep + v * f.add; };
      add(sums.even[i], even[i] * post);
      add(sums.odd[i], odd[i] * post);
      if (last) *reinterpret_cast<float2*>(partial + h * dim + d) = {sums.even[i], sums.odd[i]};
    }
  }
}

// attend_stage() for MiniMax-M3: of more than eight rows a block takes two chunks at once, each by
// half of its warps: a chunk is a chain of short steps that leaves most of a block idle.
__device__ __forceinline__ void attend_pages(Context& c) {
  using PageTeam = Team<kOnePass ? kWarps : kWarps / 2>;
  constexpr int kTeams = PageTeam::kTeams;
  constexpr int kQueryVectors = 16 * 128 / 8;
  static_assert(PageTeam::kThreadsOfTeam >= kQueryVectors);
  static_assert(kTeams == 1 || kTeams * attention_bytes(128, true) <= kColumns * kMaxHidden * 2);
  const PageTeam team(c);
  const Shape& s = c.p.shape;
  const int chunks = c.step().max_chunks[1];
  const int units = c.rows() * s.kv_heads * chunks;
  unsigned char* const scratch = c.x + team.number * attention_bytes(128, true);
  std::uint16_t* const queries = queries_of(scratch, value_row_bytes(128, true));
  const int first = c.block + team.number * c.blocks;
#pragma unroll 1
  for (int unit = first; unit < units; unit += kTeams * c.blocks) {
    const int which = over(unit, c.s.chunks_divider);
    const int chunk = unit - which * chunks;
    const int row = row_of_head_task(which, s.kv_heads);
    const int head = which - row * s.kv_heads;
    const int position = c.step().position[row];
    if (chunk > position / kPageTokens) continue;
    if (unit != first) team.sync();  // whoever still reads the scratch
    // In pairs of heads (place_of_dim()).
    const auto* from = reinterpret_cast<const uint4*>(
        c.p.q + (static_cast<std::int64_t>(row) * s.heads + head * 16) * 128);
    if (team.thread < kQueryVectors)
      copy_async(queries + (team.thread >> 5) * kPairStride + (team.thread & 31) * 8,
                 from + team.thread);
    commit_copies();
    const ChosenBlock chosen = choose_scored_block(c, team, row, head, chunk);
    const std::int64_t page =
        chosen.page >= 0 ? chosen.page : table_of(c.p, c.step(), row)[chosen.block];
    float* const partial = partial_at(c.p, row, head, chunk);
    attend_page<true>(
        c, team, scratch, head, min(kPageTokens, position + 1 - chosen.block * kPageTokens), page,
        [&](int h, float best, float sum) {
          partial[16 * 128 + h] = best;
          partial[16 * 129 + h] = sum;
        },
        [&](int h, int d, float2 v) { *reinterpret_cast<float2*>(partial + h * 128 + d) = v; });
  }
}

__device__ __forceinline__ void attend_stage(Context& c) {
  if constexpr (kM3) {
    attend_pages(c);
    return;
  }
#if MONOLAYER_KERNELS_DENSE
  attend_dense(c);
#else
  const Team<kWarps> team(c);
  const Shape& s = c.p.shape;
  ChunkSums sums{};
  if (!is_sparse(c.layer())) {
    const int units = c.rows() * s.kv_heads * c.step().max_chunks[0];
#pragma unroll 1
    for (DenseUnit at = dense_unit(c, c.block, units, c.blocks); at.unit < units;
         at = dense_unit(c, at.unit + c.blocks, units, c.blocks)) {
#pragma unroll 1
      for (; at.page < at.end; ++at.page) {
        team.sync();  // whoever still reads the scratch
        attend_chunk(c, at.row, at.head, at.partial, at.page * kPageTokens, keys_of(c, at),
                     table_of(c.p, c.step(), at.row)[at.page], at.first(), at.last(), sums);
      }
    }
    return;
  }
  const int chunks = c.step().max_chunks[1];
  const int units = c.rows() * s.kv_heads * chunks;
#pragma unroll 1
  for (int unit = c.block; unit < units; unit += c.blocks) {
    const int which = unit / chunks;
    const int chunk = unit - which * chunks;
    const int row = which / s.kv_heads;
    const int head = which - row * s.kv_heads;
    const int position = c.step().position[row];
    const int size = block_size_of(s);
    if (chunk * size > position) continue;
    team.sync();  // whoever still reads the scratch
    const int first = choose_scored_block(c, team, row, head, chunk).block * size;
    attend_chunk(c, row, head, chunk, first, min(size, position + 1 - first),
                 table_of(c.p, c.step(), row)[first / kPageTokens], true, true, sums);
  }
#endif
}

// Partials of a (row, head) in ascending order, by a warp for each 32 dims: a lane's dim of sixteen
// at once. Maxima are a scan, so the factors of all are computed side by side; the sums are the
// chain of docs/numerics.md, of more than sixteen one of every sixteen, then of what those
// gave. `WORDS`: the result is handed over as words.
template <bool WORDS>
__device__ __forceinline__ void merge_head(Context& c, int task, int quarter) {
  constexpr int kTogether = kMergedTogether;
  const Shape& s = c.p.shape;
  const bool sparse = is_sparse(c.layer());
  const int dim = head_dim_of(s);
  const int row = row_of_head_task(task, s.heads);
  const int in_row = task - row * s.heads;
  const int head = in_row / group_of(s);
  const int h = in_row - head * group_of(s);
  const int position = c.step().position[row];
  const int chunks = sparse ? min(topk_of(s), position / block_size_of(s) + 1)
                            : dense_partials(position / kPageTokens + 1);
  const int stride = partial_size(s);
  const float* partial = partial_at(c.p, row, head, 0);
  auto* factors = reinterpret_cast<float4*>(c.red) + c.warp * kTogether;  // keep, add, sum
  const int d = quarter * 32 + c.lane;
  float value = 0;
  float sum = 0;
  float value_before = 0;  // of what came before these sixteen
  float sum_before = 0;
  float maximum = 0;
#pragma unroll 1
  for (int base = 0;; base += kTogether) {
    const int count = min(kTogether, chunks - base);
    const float* at = partial + static_cast<std::int64_t>(base) * stride;
    float o[kTogether] = {};
    const float* from = at + h * dim + d;
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      // What is not there is the first one, not added.
      if (kM3 || d < dim) o[k] = load_l2(from + (k < count ? k : 0) * stride);
    }
    const float largest = scan_partials(at, h, count, c.lane, factors);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const float4 f = factors[k];
      sum = sum * f.x + f.z * f.y;
      value = value * f.x + o[k] * f.y;
    }
    if (kM3) break;
    const float most = __shfl_sync(0xFFFFFFFFU, largest, count - 1);
    if (base == 0) {
      maximum = most;
    } else {
      const ChunkFactors f = add_chunk(maximum, sum_before, most, sum);
      value = value_before * f.keep + value * f.add;
      sum = sum_before;
    }
    if (base + kTogether >= chunks) break;
    value_before = value;
    sum_before = sum;
    value = sum = 0;
  }
  if (d >= dim) return;
  const float attended = __fdiv_rn(value, sum) * s.v_scale;
  const Matrix& o = c.layer().o;
  if constexpr (WORDS) {
    if (is_stalled(kMerge)) return;
    hand_over_four(words_at(kAttendedWords, row) + (in_row * 128 + d) / 4,
                   scaled_half(attended, o.x_scale), c.rehearsal ? 0 : tag_of(c));
    return;
  }
  c.p.attended[static_cast<std::int64_t>(task) * dim + d] = kM3 || o.format == Format::kE4M3Half
                                                                ? scaled_half(attended, o.x_scale)
                                                                : scaled_bf16(attended);
}
template <bool WORDS>
__device__ __forceinline__ void merge_stage(Context& c) {
#if MONOLAYER_KERNELS_DENSE
  merge_dense(c);
#else
  constexpr int kQuarters = 4;
  const int block = c.block - first_to_merge(is_sparse(c.layer()));
  if (block < 0) return;
#pragma unroll 1
  for (int task = c.warp / kQuarters * c.blocks + block; task < c.rows() * c.p.shape.heads;
       task += c.blocks * (kWarps / kQuarters)) {
    merge_head<WORDS>(c, task, c.warp % kQuarters);
  }
#endif
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

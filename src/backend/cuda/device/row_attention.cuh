// Choice of blocks, attention and merge for the only row of a step of MiniMax-M3, handed over as
// words: what select.cuh and attention.cuh do for any step, the same sums in the same order.
#pragma once

#include "backend/cuda/device/attention.cuh"
#include "backend/cuda/device/row_heads.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

static_assert(kRanked * 8 == kWordGroups);

// The key that select.cuh chooses a block by, once its scores are there.
__device__ __forceinline__ std::uint64_t row_block_key(const Context& c, int head, int block,
                                                       int blocks, int last_group) {
  const Shape& s = c.p.shape;
  if (block >= blocks - min(s.local_blocks, blocks))
    return 0xFFFFFFFFULL << 32 | static_cast<std::uint32_t>(block);
  const std::uint32_t tie = 0xFFFFFFFFU - static_cast<std::uint32_t>(block);
  if (block < s.init_blocks) return 0xFFFFFFFEULL << 32 | tie;
  const int count = min(8, last_group + 1 - block * 8);
  const uint4* from = words_at(kScoreWords) + head * (kWordGroups / 2) + block * 4;
  const std::uint32_t tag = tag_of(c);
  uint4 two[4];
  std::uint64_t start = 0;
  for (std::uint32_t polls = 1;; ++polls) {
#pragma unroll
    for (int i = 0; i < 4; ++i) two[i] = load_words(from + i);
    std::uint32_t wrong = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wrong |= 2 * i < count ? two[i].y ^ tag : 0;
      wrong |= 2 * i + 1 < count ? two[i].w ^ tag : 0;
    }
    if (wrong == 0) break;
    if (polls % kPollsBetweenLooks != 0) continue;
    start = look(start, layer_of(c), kHeads, from, tag);
    if (start == kGivenUp) break;
  }
  float best = -INFINITY;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float v = __uint_as_float(i % 2 == 0 ? two[i / 2].x : two[i / 2].z);
    if (i < count) best = best < v ? v : best;
  }
  const std::uint32_t bits = __float_as_uint(best + 0.0F);
  const std::uint32_t order = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return static_cast<std::uint64_t>(min(order, 0xFFFFFFFDU)) << 32 | tie;
}

// Scratch of the choice: keys, a bit a block, then the pages of all blocks.
__device__ __forceinline__ std::int32_t* pages_of(std::uint64_t* keys) {
  return reinterpret_cast<std::int32_t*>(keys + kRanked) + kRanked / 32;
}

// A bit for each chosen block, in shared memory; all computing warps. `keys`: scratch.
__device__ __forceinline__ const std::uint32_t* choose_row_blocks(const Context& c, int head,
                                                                  int blocks, std::uint64_t* keys) {
  auto* chosen = reinterpret_cast<std::uint32_t*>(keys + kRanked);
  const int padded = (blocks + 7) & ~7;
  if (c.thread < kRanked / 32) chosen[c.thread] = 0;
  if (c.thread < blocks) pages_of(keys)[c.thread] = __ldg(table_of(c.p, c.step(), 0) + c.thread);
  if (c.thread < padded) {
    keys[c.thread] =
        c.thread < blocks ? row_block_key(c, head, c.thread, blocks, c.step().position[0] / 16) : 0;
  }
  sync(c);
#pragma unroll 1
  for (int first = 0; first < padded; first += kThreads / 8) {
    const int block = first + (c.thread >> 3);
    const std::uint64_t mine = block < blocks ? keys[block] : ~0ULL;
    int rank = 0;
#pragma unroll 8
    for (int i = c.thread & 7; i < padded; i += 8) rank += keys[i] > mine ? 1 : 0;
#pragma unroll
    for (int d = 1; d < 8; d <<= 1) rank += __shfl_xor_sync(0xFFFFFFFFU, rank, d);
    if (block < blocks && rank < topk_of(c.p.shape) && (c.thread & 7) == 0)
      atomicOr(chosen + block / 32, 1U << block % 32);
  }
  sync(c);
  return chosen;
}
// The n-th chosen block, ascending; a whole warp.
__device__ __forceinline__ int chosen_block(const std::uint32_t* chosen, int n, int lane) {
  int word = 0;
  std::uint32_t bits = chosen[0];
#pragma unroll 1
  while (n >= __popc(bits)) {
    n -= __popc(bits);
    bits = chosen[++word];
  }
  const bool here = (bits >> lane & 1U) != 0 && __popc(bits & ((1U << lane) - 1)) == n;
  return word * 32 + __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFU, here))) - 1;
}
// All chosen blocks, for whoever looks.
__device__ __forceinline__ void store_chosen(const Context& c, const std::uint32_t* chosen,
                                             int words, std::int32_t* to) {
#pragma unroll 1
  for (int word = 0; word < words; ++word) {
    const std::uint32_t bits = chosen[word];
    if ((bits >> c.lane & 1U) != 0) to[__popc(bits & ((1U << c.lane) - 1))] = word * 32 + c.lane;
    to += __popc(bits);
  }
}

// Keys [0, keys) of a page for the sixteen query heads of a KV head: attend_chunk's sums, with the
// dims of a pair on two warps.
__device__ __forceinline__ void attend_row_chunk(Context& c, int head, int chunk, int keys,
                                                 std::int64_t page) {
  constexpr int kDim = 128;
  constexpr int kValueRow = value_row_bytes(kDim, true);
  const Shape& s = c.p.shape;
  const int g = c.lane >> 2;
  const int t = c.lane & 3;
  const std::int64_t base = (page * s.kv_heads + head) * kPageTokens * kDim;
  auto* scores = reinterpret_cast<float*>(c.x + kPageTokens * kValueRow);      // [16][132]
  auto* probs = reinterpret_cast<std::uint16_t*>(scores + 16 * kScoreStride);  // [16][136]
  auto* queries = probs + 16 * kProbStride;                                    // [16][136]
  uint4 raw[2];
  const unsigned char* key = c.layer().k_cache + base + (c.warp * 8 + g) * kDim + t * (kDim / 4);
#pragma unroll
  for (int i = 0; i < 2; ++i) raw[i] = __ldcg(reinterpret_cast<const uint4*>(key) + i);
  // Values of keys past the end are zeros, whatever the page holds.
  const unsigned char* values = c.layer().v_cache + base;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int key = (c.thread >> 3) + k * 64;
    const int at = (c.thread & 7) * 16;
    unsigned char* to = c.x + key * kValueRow + at;
    if (key < keys) {
      copy_async(to, values + key * kDim + at);
    } else {
      *reinterpret_cast<uint4*>(to) = {0, 0, 0, 0};
    }
  }
  sync(c);  // all queries are staged
  {
    float acc[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t b[4];
      decode_e4m3_pairs(i % 2 == 0 ? raw[i / 2].x : raw[i / 2].z, b[0], b[1]);
      decode_e4m3_pairs(i % 2 == 0 ? raw[i / 2].y : raw[i / 2].w, b[2], b[3]);
      const std::uint16_t* q = queries + g * kQueryStride + t * (kDim / 4) + 8 * i;
      const uint4 q0 = *reinterpret_cast<const uint4*>(q);
      const uint4 q1 = *reinterpret_cast<const uint4*>(q + 8 * kQueryStride);
      mma(acc, q0.x, q1.x, q0.y, q1.y, b[0], b[1]);
      mma(acc, q0.z, q1.z, q0.w, q1.w, b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] = (acc[i] * kPostE4M3) * s.score_scale;
    float* to = scores + g * kScoreStride + c.warp * 8 + 2 * t;
    *reinterpret_cast<float2*>(to) = {acc[0], acc[1]};
    *reinterpret_cast<float2*>(to + 8 * kScoreStride) = {acc[2], acc[3]};
  }
  sync(c);
  const bool stalled = is_stalled(kAttend);
  const int of_chunk = (head * kWordChunks + chunk) * 16;
  {
    float value[4];
    float best = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = c.lane + 32 * i;
      value[i] = key < keys ? scores[c.warp * kScoreStride + key] : -INFINITY;
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
      const float e = key < keys ? exponential(value[i] - best) : 0.0F;
      sum += e;
      probs[c.warp * kProbStride + key] = scaled_bf16(e);
    }
    wait_copies();
    sync(c);
    sum = warp_sum(sum);
    if (c.lane == 0 && !stalled) {
      store_words(words_at(kMaximaWords) + of_chunk + c.warp,
                  {__float_as_uint(best), __float_as_uint(sum), 0, tag_of(c)});
    }
  }
  // Dims 16 (w / 2) + 2 n + w % 2. A matrix of eight keys and eight pairs of dims a step and half:
  // keys 4 k, 4 k + 1 of the step's sixteen, then 4 k + 2, 4 k + 3, as attend_chunk pairs them.
  float acc[4] = {};
  const int row = c.lane & 7;
  const unsigned char* value =
      c.x + ((c.lane >> 4) * 16 + (c.lane >> 3 & 1) * 2 + row / 2 * 4 + row % 2) * kValueRow +
      (c.warp >> 1) * 16;
  const std::uint16_t* p = probs + g * kProbStride + 4 * t;
  const std::uint32_t of_pair = (c.warp & 1) != 0 ? 0x7531 : 0x6420;
#pragma unroll
  for (int step = 0; step < kPageTokens; step += 32) {
    std::uint32_t r[4];
    load_matrices_transposed(r, value + step * kValueRow);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint2 a0 = *reinterpret_cast<const uint2*>(p + step + 16 * k);
      const uint2 a1 = *reinterpret_cast<const uint2*>(p + step + 16 * k + 8 * kProbStride);
      std::uint32_t low = 0;
      std::uint32_t high = 0;
      decode_e4m3_pairs(__byte_perm(r[2 * k], r[2 * k + 1], of_pair), low, high);
      mma(acc, a0.x, a1.x, a0.y, a1.y, low, high);
    }
  }
  // By way of shared memory: stores of single values would take far longer than all the rest.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scores[(g + i / 2 * 8) * kScoreStride + (c.warp >> 1) * 16 + 2 * (2 * t + i % 2) +
           (c.warp & 1)] = acc[i] * kPostE4M3;
  }
  sync(c);
  if (stalled) return;
  const float* from = scores + c.warp * kScoreStride + 2 * c.lane;
  uint4* to = words_at(kPartialWords) + (of_chunk + c.warp) * (kDim / 2) + c.lane;
  const std::uint32_t tag = tag_of(c);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float2 pair = *reinterpret_cast<const float2*>(from + 64 * k);
    store_words(to + 32 * k, {__float_as_uint(pair.x), tag, __float_as_uint(pair.y), tag});
  }
}

__device__ __forceinline__ void row_attend_stage(Context& c) {
  const Shape& s = c.p.shape;
  const int chunks = c.step().max_chunks[1];
  const int position = c.step().position[0];
  const int blocks = position / kPageTokens + 1;
  auto* queries = reinterpret_cast<std::uint16_t*>(c.x + kPageTokens * value_row_bytes(128, true) +
                                                   16 * (kScoreStride * 4 + kProbStride * 2));
  auto* keys = reinterpret_cast<std::uint64_t*>(c.red);
#pragma unroll 1
  for (int unit = c.block; unit < s.kv_heads * chunks; unit += c.blocks) {
    const int head = unit / chunks;
    const int chunk = unit - head * chunks;
    if (unit != c.block) sync(c);  // whoever still reads the scratch
    // A head a warp: dims of a lane are 32 apart. Asked for before the scores, used after them.
    const uint4* query = words_at(kQueryWords) + (head * 16 + c.warp) * 32 + c.lane;
    uint4 w[1] = {load_words(query)};
    std::int32_t* const ids = c.p.block_ids + head * topk_of(s);
    int block = chunk;
    std::int64_t page = -1;
    if (blocks > kRanked) {
      const int count = select_blocks(c, 0, head);
      block = c.s.selected[chunk];
      if (chunk == 0 && c.thread < count) ids[c.thread] = c.s.selected[c.thread];
    } else if (blocks > topk_of(s)) {
      const std::uint32_t* chosen = choose_row_blocks(c, head, blocks, keys);
      block = chosen_block(chosen, chunk, c.lane);
      page = pages_of(keys)[block];
      if (chunk == 0 && c.warp == kWarps - 1) store_chosen(c, chosen, (blocks + 31) / 32, ids);
    } else if (chunk == 0 && c.thread < blocks) {
      ids[c.thread] = c.thread;
    }
    if (w[0].w != tag_of(c)) take(w, tag_of(c), layer_of(c), kHeads, [&](int) { return query; });
    if (c.thread == 0) stamp(layer_of(c), kAttend, 0);
    std::uint16_t* to = queries + c.warp * kQueryStride + c.lane;
    to[0] = static_cast<std::uint16_t>(w[0].x);
    to[32] = static_cast<std::uint16_t>(w[0].x >> 16);
    to[64] = static_cast<std::uint16_t>(w[0].y);
    to[96] = static_cast<std::uint16_t>(w[0].y >> 16);
    if (page < 0) page = __ldg(table_of(c.p, c.step(), 0) + block);
    attend_row_chunk(c, head, chunk, min(kPageTokens, position + 1 - block * kPageTokens), page);
  }
}

// Partials of a head in ascending order, by a warp for each 32 dims: merge_head's sums.
__device__ __forceinline__ void merge_row_head(Context& c, int task, int quarter) {
  const Shape& s = c.p.shape;
  const int head = task >> 4;
  const int h = task & 15;
  const int count = c.step().max_chunks[1];
  const std::uint32_t tag = tag_of(c);
  const int d = quarter * 32 + c.lane;
  const int first = head * kWordChunks * 16 + h;
  const auto* from =
      reinterpret_cast<const std::uint64_t*>(words_at(kPartialWords)) + (first * 128 + d);
  const bool there = c.lane < count;
  const uint4* maximum_of = words_at(kMaximaWords) + first + (there ? c.lane : 0) * 16;
  // Chunks that are not there are the first one, with a factor of zero.
  uint4 own;
  float o[kWordChunks];
  std::uint64_t start = 0;
  for (std::uint32_t polls = 1;; ++polls) {
    std::uint64_t w[kWordChunks];
    own = load_words(maximum_of);
    if (count == kWordChunks) {
#pragma unroll
      for (int k = 0; k < kWordChunks; ++k) w[k] = load_value(from + k * 16 * 128);
    } else {
#pragma unroll
      for (int k = 0; k < kWordChunks; ++k)
        w[k] = load_value(from + (k < count ? k : 0) * 16 * 128);
    }
    std::uint32_t wrong = own.w ^ tag;
#pragma unroll
    for (int k = 0; k < kWordChunks; ++k) {
      o[k] = __uint_as_float(static_cast<std::uint32_t>(w[k]));
      wrong |= static_cast<std::uint32_t>(w[k] >> 32) ^ tag;
    }
    if (wrong == 0) break;
    if (polls % kPollsBetweenLooks != 0) continue;
    start = look(start, layer_of(c), kAttend, words_at(kPartialWords) + first * 64, tag);
    if (start == kGivenUp) break;
  }
  if (c.thread == 0) stamp(layer_of(c), kMerge, 0);
  const float m = there ? __uint_as_float(own.x) : -INFINITY;
  float largest = m;
#pragma unroll
  for (int step = 1; step < kWordChunks; step <<= 1) {
    const float before = __shfl_up_sync(0xFFFFFFFFU, largest, step);
    if (c.lane >= step) largest = before < largest ? largest : before;
  }
  float before = __shfl_up_sync(0xFFFFFFFFU, largest, 1);
  if (c.lane == 0) before = -INFINITY;
  float4 f = {exponential(before - largest), exponential(m - largest), __uint_as_float(own.y), 0};
  if (!there) f = {1, 0, 0, 0};
  auto* factors = reinterpret_cast<float4*>(c.red) + c.warp * kWordChunks;  // keep, add, sum
  if (c.lane < kWordChunks) factors[c.lane] = f;
  __syncwarp();
  float value = 0;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kWordChunks; ++k) {
    const float4 of = factors[k];
    sum = sum * of.x + of.z * of.y;
    value = value * of.x + o[k] * of.y;
  }
  const float attended = __fdiv_rn(value, sum) * s.v_scale;
  hand_over_columns(kAttendedWords, task * 128 + d, 0, !is_stalled(kMerge),
                    scaled_half(attended, c.layer().o.x_scale), tag);
}
__device__ __forceinline__ void row_merge_stage(Context& c) {
  constexpr int kQuarters = 4;
  const int block = c.block - first_to_merge(true);
  if (block < 0) return;
#pragma unroll 1
  for (int task = c.warp / kQuarters * c.blocks + block; task < c.p.shape.heads;
       task += c.blocks * (kWarps / kQuarters)) {
    merge_row_head(c, task, c.warp % kQuarters);
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

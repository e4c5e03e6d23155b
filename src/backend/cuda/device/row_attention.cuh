// Choice of blocks, attention and merge for the only row of a step of MiniMax-M3, handed over as
// words: what select.cuh and attention.cuh do for any step, the same sums in the same order.
#pragma once

#include "backend/cuda/device/attention.cuh"
#include "backend/cuda/device/row_heads.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

static_assert(kRanked * 8 == kWordGroups);
// Ids of chosen blocks lie behind the factors of the merge.
static_assert(kWarps * kWordChunks * static_cast<int>(sizeof(float4)) <= kRanked * 8);

// The key that select.cuh chooses a block by, once its scores are there.
__device__ __forceinline__ std::uint64_t row_block_key(const Context& c, int head, int block) {
  const Shape& s = c.p.shape;
  const int last_group = c.step().position[0] / 16;
  const int blocks = last_group / 8 + 1;
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
  return static_cast<std::uint64_t>(min(order_of(best), 0xFFFFFFFDU)) << 32 | tie;
}

// Keys of blocks whose scores are words.
struct RowKeys {
  static constexpr int kTogether = 1;
  int head;
  __device__ __forceinline__ std::uint64_t operator()(const Context& c, int block) const {
    return row_block_key(c, head, block);
  }
};

// The block that a chunk of a KV head is.
__device__ __forceinline__ ChosenBlock choose_row_block(const Context& c, const Team<kWarps>& team,
                                                        int head, int chunk) {
  if (scores_are_words(c.step())) return choose_block(c, team, 0, head, chunk, RowKeys{head});
  const int position = c.step().position[0];
  const int blocks = position / kPageTokens + 1;
  return choose_of_many(c, team, head, chunk,
                        ScoreKeys{c.p.scores + static_cast<std::int64_t>(head) * c.p.score_stride,
                                  blocks, position / 16},
                        blocks);
}

__device__ __forceinline__ void row_attend_stage(Context& c) {
  const Team<kWarps> team(c);
  const RowPlan& plan = row_plan();
  const int position = c.step().position[0];
  std::uint16_t* const queries = queries_of(c.x, value_row_bytes(128, true));
#pragma unroll 1
  for (int unit = c.block; unit < plan.units; unit += c.blocks) {
    const int head = unit / plan.of_head;
    // A head a warp: dims of a lane are 32 apart. Asked for before the scores, used after them.
    const uint4* query = words_at(kQueryWords) + (head * 16 + c.warp) * 32 + c.lane;
    uint4 w[1] = {load_words(query)};
    ChosenBlock chosen{plan.own_block, plan.own_page};
    if (plan.own_block < 0) chosen = choose_row_block(c, team, head, unit - head * plan.of_head);
    if (w[0].w != tag_of(c)) take(w, tag_of(c), layer_of(c), kHeads, [&](int) { return query; });
    if (c.thread == 0) stamp(layer_of(c), kAttend, 0);
    team.sync();  // whoever still scores keys, or reads the scratch
    std::uint16_t* to = queries + (c.warp & 7) * kPairStride + place_of_dim(c.warp, c.lane);
    to[0] = static_cast<std::uint16_t>(w[0].x);
    to[8] = static_cast<std::uint16_t>(w[0].x >> 16);
    to[16] = static_cast<std::uint16_t>(w[0].y);
    to[24] = static_cast<std::uint16_t>(w[0].y >> 16);
    const std::int64_t page =
        chosen.page >= 0 ? chosen.page : __ldg(table_of(c.p, c.step(), 0) + chosen.block);
    const bool stalled = is_stalled(kAttend);
    const int of_unit = unit * 16;
    const std::uint32_t tag = tag_of(c);
    attend_page<false>(
        c, team, c.x, head, min(kPageTokens, position + 1 - chosen.block * kPageTokens), page,
        [&](int h, float best, float sum) {
          if (stalled) return;
          store_words(words_at(kMaximaWords) + of_unit + h,
                      {__float_as_uint(best), __float_as_uint(sum), 0, tag});
        },
        [&](int h, int d, float2 v) {
          if (stalled) return;
          store_words(words_at(kPartialWords) + ((of_unit + h) * 128 + d) / 2,
                      {__float_as_uint(v.x), tag, __float_as_uint(v.y), tag});
        });
  }
}

// Partials of a head in ascending order, by a warp for each 32 dims: merge_head's sums. `ids`: the
// blocks chosen among all that were attended to, or null.
__device__ __forceinline__ void merge_row_head(Context& c, int task, int quarter,
                                               const std::int32_t* ids) {
  const Shape& s = c.p.shape;
  const int h = task & 15;
  const int count = c.step().max_chunks[1];
  const std::uint32_t tag = tag_of(c);
  const int d = quarter * 32 + c.lane;
  const int first = (task >> 4) * row_plan().of_head * 16 + h;
  const auto* from =
      reinterpret_cast<const std::uint64_t*>(words_at(kPartialWords)) + (first * 128 + d);
  const bool there = c.lane < count;
  // Chunks that are not there are the first one, with a factor of zero.
  const auto unit_of = [&](int k) { return ids != nullptr ? ids[k] : k < count ? k : 0; };
  const uint4* maximum_of = words_at(kMaximaWords) + first + (there ? unit_of(c.lane) : 0) * 16;
  int place[kWordChunks];
#pragma unroll
  for (int k = 0; k < kWordChunks; ++k) place[k] = unit_of(k) * 16 * 128;
  uint4 own;
  float o[kWordChunks];
  std::uint64_t start = 0;
  for (std::uint32_t polls = 1;; ++polls) {
    std::uint64_t w[kWordChunks];
    own = load_words(maximum_of);
#pragma unroll
    for (int k = 0; k < kWordChunks; ++k) w[k] = load_value(from + place[k]);
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

// Of all blocks of the context, those chosen for a head's KV head, ascending, in shared memory.
__device__ __forceinline__ const std::int32_t* choose_for_merge(const Context& c, int kv_head) {
  const Team<kWarps> team(c);
  const int blocks = row_plan().of_head;
  const std::uint32_t* chosen = rank_blocks(c, team, 0, blocks, RowKeys{kv_head});
  std::int32_t* const ids = pages_of(choice_scratch(c, team));
  const int words = (blocks + 31) / 32;
  if (c.warp == 0) store_chosen(c, chosen, words, ids);
  if (c.warp == 1) store_chosen(c, chosen, words, c.p.block_ids + kv_head * topk_of(c.p.shape));
  team.sync();
  return ids;
}

__device__ __forceinline__ int first_to_merge_row() {
  return first_after(row_plan().units, shared().params.shape.heads);
}
__device__ __forceinline__ void row_merge_stage(Context& c) {
  constexpr int kQuarters = 4;
  const int block = c.block - first_to_merge_row();
  if (block < 0) return;
  // With all attended to, a block merges at most one head.
  const std::int32_t* ids = nullptr;
  if (row_plan().own_block >= 0 && block < c.p.shape.heads) ids = choose_for_merge(c, block >> 4);
#pragma unroll 1
  for (int task = c.warp / kQuarters * c.blocks + block; task < c.p.shape.heads;
       task += c.blocks * (kWarps / kQuarters)) {
    merge_row_head(c, task, c.warp % kQuarters, ids);
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

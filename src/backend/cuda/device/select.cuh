// The choice of blocks a row attends to.
#pragma once

#include "backend/cuda/device/heads.cuh"
#include "backend/cuda/device/team.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

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
    const int per_block = block_size_of(s) / 16;
    float best = -INFINITY;
    const int first = block * per_block;
    const int count = min(per_block, last_group + 1 - first);
    float v[8];
    if (kM3) {
      // A row of scores is padded to whole blocks.
      const float4 low = __ldcg(reinterpret_cast<const float4*>(scores + first));
      const float4 high = __ldcg(reinterpret_cast<const float4*>(scores + first) + 1);
      const float loaded[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = i < count ? loaded[i] : -INFINITY;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = i < count ? load_l2(scores + first + i) : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) best = best < v[i] ? v[i] : best;
    order = min(order_of(best), 0xFFFFFFFDU);
  }
  return static_cast<std::uint64_t>(order) << 32 | tie;
}

inline constexpr int kRanked = 512;  // most blocks whose ranks are counted

// Scratch of a team's choice: keys, a bit a block, then, where a block is a page, the pages of all
// blocks: an address less to wait for.
inline constexpr int kChoiceBytes = kRanked * 8 + kRanked / 8 + kRanked * 4;
static_assert(kWarps / 8 * kChoiceBytes <=
              2 * red_entries(kMaxRows) * 16 * red_columns(kMaxRows) * 4);
static_assert(kChoiceBytes <= kWarps * 128 * 4, "what sums leave as scratch between products");
template <int WARPS>
__device__ __forceinline__ std::uint64_t* choice_scratch(const Context& c,
                                                         const Team<WARPS>& team) {
  return reinterpret_cast<std::uint64_t*>(reinterpret_cast<unsigned char*>(c.red) +
                                          team.number * kChoiceBytes);
}
__device__ __forceinline__ std::int32_t* pages_of(std::uint64_t* keys) {
  return reinterpret_cast<std::int32_t*>(keys + kRanked) + kRanked / 32;
}

// More blocks than a rank is counted for: one round a block, the best of those below the last one
// taken. Their ids go to the scratch, ascending. Apart, because it is rarely run and code has to be
// fetched.
template <int WARPS>
__device__ __noinline__ void select_rounds(const float* scores, int blocks, int last_group) {
  const Context c = open_context({});
  const Team<WARPS> team(c);
  const Shape& s = c.p.shape;
  std::uint64_t* const chosen = choice_scratch(c, team);
  std::uint64_t* const best_of_warp = chosen + kMaxTopBlocks;
  std::uint64_t bound = ~0ULL;
#pragma unroll 1
  for (int k = 0; k < topk_of(s); ++k) {
    std::uint64_t best = 0;
#pragma unroll 1
    for (int b = team.thread; b < blocks; b += team.kThreadsOfTeam) {
      const std::uint64_t key = block_key(c, scores, b, blocks, last_group);
      if (key < bound && key > best) best = key;
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
      const std::uint64_t other = __shfl_xor_sync(0xFFFFFFFFU, best, d);
      best = other > best ? other : best;
    }
    if (team.lane == 0) best_of_warp[team.warp] = best;
    team.sync();
#pragma unroll 1
    for (int w = 0; w < WARPS; ++w) best = best_of_warp[w] > best ? best_of_warp[w] : best;
    bound = best;
    const auto tie = static_cast<std::uint32_t>(best);
    if (team.thread == 0) chosen[k] = best >> 32 == 0xFFFFFFFFU ? tie : 0xFFFFFFFFU - tie;
    team.sync();
  }
  if (team.thread < topk_of(s)) {
    const std::uint64_t mine = chosen[team.thread];
    int rank = 0;
#pragma unroll 1
    for (int i = 0; i < topk_of(s); ++i) rank += chosen[i] < mine ? 1 : 0;
    pages_of(chosen)[rank] = static_cast<std::int32_t>(mine);
  }
  team.sync();
}

// A bit for each chosen block: those whose rank, counted by eight threads a block, is low enough.
// key_of(block): what a block is chosen by.
template <int WARPS, typename K>
__device__ __forceinline__ const std::uint32_t* rank_blocks(const Context& c,
                                                            const Team<WARPS>& team, int row,
                                                            int blocks, K&& key_of) {
  std::uint64_t* const keys = choice_scratch(c, team);
  auto* chosen = reinterpret_cast<std::uint32_t*>(keys + kRanked);
  const int padded = (blocks + 7) & ~7;
  if (team.thread < kRanked / 32) chosen[team.thread] = 0;
#pragma unroll 1
  for (int block = team.thread; block < padded; block += team.kThreadsOfTeam) {
    if (kM3 && block < blocks) pages_of(keys)[block] = __ldg(table_of(c.p, c.step(), row) + block);
    keys[block] = block < blocks ? key_of(block) : 0;
  }
  team.sync();
#pragma unroll 1
  for (int first = 0; first < padded; first += team.kThreadsOfTeam / 8) {
    const int block = first + (team.thread >> 3);
    const std::uint64_t mine = block < blocks ? keys[block] : ~0ULL;
    int rank = 0;
#pragma unroll 4
    for (int i = team.thread & 7; i < padded; i += 8) rank += keys[i] > mine ? 1 : 0;
#pragma unroll
    for (int d = 1; d < 8; d <<= 1) rank += __shfl_xor_sync(0xFFFFFFFFU, rank, d);
    if (block < blocks && rank < topk_of(c.p.shape) && (team.thread & 7) == 0)
      atomicOr(chosen + block / 32, 1U << block % 32);
  }
  team.sync();
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

// The block that chunk `chunk` of (row, index head) is, of those chosen for them in ascending
// order, and its page, -1: whoever uses it looks. All of the team; whoever still reads its scratch
// comes first.
struct ChosenBlock {
  int block;
  std::int32_t page;
};
template <int WARPS, typename K>
__device__ __forceinline__ ChosenBlock choose_block(const Context& c, const Team<WARPS>& team,
                                                    int row, int head, int chunk, K&& key_of) {
  const Shape& s = c.p.shape;
  const int position = c.step().position[row];
  const int blocks = position / block_size_of(s) + 1;
  const int of_head = row * s.index_heads + head;
  std::int32_t* const ids = c.p.block_ids + of_head * topk_of(s);
  if (blocks <= topk_of(s)) {
    if (chunk == 0 && team.thread < blocks) ids[team.thread] = team.thread;
    return {chunk, -1};
  }
  if (blocks > kRanked) {
    select_rounds<WARPS>(c.p.scores + static_cast<std::int64_t>(of_head) * c.p.score_stride, blocks,
                         position / 16);
    const std::int32_t* selected = pages_of(choice_scratch(c, team));
    if (chunk == 0 && team.thread < topk_of(s)) ids[team.thread] = selected[team.thread];
    return {selected[chunk], -1};
  }
  const std::uint32_t* chosen = rank_blocks(c, team, row, blocks, key_of);
  const int block = chosen_block(chosen, chunk, c.lane);
  if (chunk == 0 && team.warp == WARPS - 1) store_chosen(c, chosen, (blocks + 31) / 32, ids);
  return {block, kM3 ? pages_of(choice_scratch(c, team))[block] : -1};
}
// The same by scores in memory.
template <int WARPS>
__device__ __forceinline__ ChosenBlock choose_scored_block(const Context& c,
                                                           const Team<WARPS>& team, int row,
                                                           int head, int chunk) {
  const int position = c.step().position[row];
  const float* scores =
      c.p.scores +
      (static_cast<std::int64_t>(row) * c.p.shape.index_heads + head) * c.p.score_stride;
  return choose_block(c, team, row, head, chunk, [&](int block) {
    return block_key(c, scores, block, position / block_size_of(c.p.shape) + 1, position / 16);
  });
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

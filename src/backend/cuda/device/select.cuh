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
  const int per_block = block_size_of(s) / 16;
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
  float best = -INFINITY;
#pragma unroll
  for (int i = 0; i < 8; ++i) best = best < v[i] ? v[i] : best;
  // The nearest of the last blocks counts most.
  if (block >= blocks - min(s.local_blocks, blocks))
    return 0xFFFFFFFFULL << 32 | static_cast<std::uint32_t>(block);
  const std::uint32_t tie = 0xFFFFFFFFU - static_cast<std::uint32_t>(block);
  const std::uint32_t order =
      block < s.init_blocks ? 0xFFFFFFFEU : min(order_of(best), 0xFFFFFFFDU);
  return static_cast<std::uint64_t>(order) << 32 | tie;
}

inline constexpr int kRanked = 512;  // most keys whose ranks are counted
// Most blocks that are chosen by the ranks of all, where that takes no longer.
template <int WARPS>
inline constexpr int kCounted = WARPS == 8 ? 192 : 256;

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

// Keys of blocks whose scores lie in memory.
struct ScoreKeys {
  static constexpr int kTogether = 4;  // that are loaded side by side
  const float* scores;
  int blocks, last_group;
  __device__ __forceinline__ std::uint64_t operator()(const Context& c, int block) const {
    return block_key(c, scores, block, blocks, last_group);
  }
};
__device__ __forceinline__ int block_of_key(std::uint64_t key) {
  const auto tie = static_cast<std::uint32_t>(key);
  return static_cast<int>(key >> 32 == 0xFFFFFFFFU ? tie : 0xFFFFFFFFU - tie);
}

// The choice among many blocks, at least kSelectGroups, whose ids go to the scratch, ascending.
// They are dealt out to kSelectGroups groups. The least of the topk largest group maxima is a bound
// that at least topk keys reach, and few others: those are collected, and their ranks counted. If
// there is no room for all, those there was room for give a higher bound. Apart, because most
// contexts do not need it and code has to be fetched.
inline constexpr int kSelectGroups = 64;
static_assert(kMaxTopBlocks <= kSelectGroups && kSelectGroups <= kRanked);
template <int WARPS, typename K>
__device__ __noinline__ void select_blocks(K key_of, int blocks) {
  constexpr int kPerWarp = kSelectGroups / WARPS;
  const Context c = open_context(own_state());
  const Team<WARPS> team(c);
  constexpr int kThreadsOfTeam = Team<WARPS>::kThreadsOfTeam;
  const int wanted = topk_of(c.p.shape);
  std::uint64_t* const candidates = choice_scratch(c, team);
  std::uint64_t* const bound = candidates + kRanked;
  auto* const counts = reinterpret_cast<int*>(bound + 1);  // [2], in turn
  std::int32_t* const ids = pages_of(candidates);
  std::int32_t* const chosen = ids + kMaxTopBlocks;
  // A lane's group, and its first block of it.
  const int group = team.warp * kPerWarp + team.lane % kPerWarp;
  const int first = group + team.lane / kPerWarp * kSelectGroups;
  if (team.thread < 2) counts[team.thread] = 0;
  std::uint64_t key[K::kTogether] = {};
  std::uint64_t best = 0;
  std::uint64_t least = 0;
  int n = kSelectGroups;
  bool all = false;
  // Not known to be 0 at first, or the compiler makes two copies of the loop.
  int turn = 0;
  asm volatile("" : "+r"(turn));
#pragma unroll 1
  for (;; ++turn) {
    // Maxima first, then whatever reaches the bound.
    if (best >= least) {
#pragma unroll 1
      for (int base = first; base < blocks; base += K::kTogether * kThreadsOfTeam) {
        // What one step of the loop looked at is still there.
        if (turn == 0 || blocks > K::kTogether * kThreadsOfTeam) {
#pragma unroll
          for (int k = 0; k < K::kTogether; ++k) {
            const int block = base + k * kThreadsOfTeam;
            key[k] = key_of(c, min(block, blocks - 1));
            if (block >= blocks) key[k] = 0;
          }
        }
#pragma unroll
        for (int k = 0; k < K::kTogether; ++k) {
          if (turn == 0) {
            best = key[k] > best ? key[k] : best;
          } else if (key[k] >= least) {
            const int at = atomicAdd(counts + (turn & 1), 1);
            if (at < kRanked) candidates[at] = key[k];
          }
        }
      }
    }
    if (turn == 0) {
      std::uint64_t most = best;
#pragma unroll
      for (int d = kPerWarp; d < 32; d <<= 1) {
        const std::uint64_t other = __shfl_xor_sync(0xFFFFFFFFU, most, d);
        most = other > most ? other : most;
      }
      if (team.lane < kPerWarp) candidates[group] = most;
    }
    team.sync();
    if (turn > 0) {
      n = counts[turn & 1];
      all = n <= kRanked;
      n = min(n, kRanked);
    }
    // Eight threads a candidate.
#pragma unroll 1
    for (int base = 0; base < n; base += kThreadsOfTeam / 8) {
      const int i = base + (team.thread >> 3);
      const std::uint64_t mine = i < n ? candidates[i] : ~0ULL;
      int rank = 0;
#pragma unroll 1
      for (int k = team.thread & 7; k < n; k += 8) rank += candidates[k] > mine ? 1 : 0;
#pragma unroll
      for (int d = 1; d < 8; d <<= 1) rank += __shfl_xor_sync(0xFFFFFFFFU, rank, d);
      if (i >= n || (team.thread & 7) != 0) continue;
      if (all && rank < wanted) chosen[rank] = block_of_key(mine);
      if (!all && rank == wanted - 1) *bound = mine;
    }
    team.sync();
    if (all) break;
    least = *bound;
    // Whoever counted there has been here since.
    if (team.thread == 0) counts[turn & 1] = 0;
  }
  if (team.warp == 0) {
    const bool there = team.lane < wanted;
    const std::int32_t mine = there ? chosen[team.lane] : 0x7FFFFFFF;
    int rank = 0;
#pragma unroll
    for (int i = 0; i < (kM3 ? 16 : kMaxTopBlocks); ++i)
      rank += __shfl_sync(0xFFFFFFFFU, mine, i) < mine ? 1 : 0;
    if (there) ids[rank] = mine;
  }
  team.sync();
}

// A bit for each chosen block: those whose rank, counted by eight threads a block, is low enough.
// key_of(block): what a block is chosen by.
template <int WARPS, typename K>
__device__ __forceinline__ const std::uint32_t* rank_blocks(const Context& c,
                                                            const Team<WARPS>& team, int row,
                                                            int blocks, const K& key_of) {
  std::uint64_t* const keys = choice_scratch(c, team);
  auto* chosen = reinterpret_cast<std::uint32_t*>(keys + kRanked);
  const int padded = (blocks + 7) & ~7;
  if (team.thread < kRanked / 32) chosen[team.thread] = 0;
#pragma unroll 1
  for (int block = team.thread; block < padded; block += team.kThreadsOfTeam) {
    if (kM3 && block < blocks) pages_of(keys)[block] = __ldg(table_of(c.p, c.step(), row) + block);
    keys[block] = block < blocks ? key_of(c, block) : 0;
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
__device__ __forceinline__ ChosenBlock choose_of_many(const Context& c, const Team<WARPS>& team,
                                                      int of_head, int chunk, const K& key_of,
                                                      int blocks) {
  const int wanted = topk_of(c.p.shape);
  select_blocks<WARPS>(key_of, blocks);
  const std::int32_t* selected = pages_of(choice_scratch(c, team));
  if (chunk == 0 && team.thread < wanted)
    c.p.block_ids[of_head * wanted + team.thread] = selected[team.thread];
  return {selected[chunk], -1};
}
template <int WARPS, typename K>
__device__ __forceinline__ ChosenBlock choose_block(const Context& c, const Team<WARPS>& team,
                                                    int row, int head, int chunk, const K& key_of) {
  const Shape& s = c.p.shape;
  const int position = c.step().position[row];
  const int blocks = position / block_size_of(s) + 1;
  const int of_head = row * s.index_heads + head;
  std::int32_t* const ids = c.p.block_ids + of_head * topk_of(s);
  if (blocks <= topk_of(s)) {
    if (chunk == 0 && team.thread < blocks) ids[team.thread] = team.thread;
    return {chunk, -1};
  }
  if (blocks > kCounted<WARPS>) return choose_of_many(c, team, of_head, chunk, key_of, blocks);
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
  return choose_block(c, team, row, head, chunk,
                      ScoreKeys{scores, position / block_size_of(c.p.shape) + 1, position / 16});
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

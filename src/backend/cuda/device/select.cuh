// The choice of blocks a row attends to.
#pragma once

#include "backend/cuda/device/heads.cuh"

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
    const std::uint32_t bits = __float_as_uint(best + 0.0F);
    order = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
    order = min(order, 0xFFFFFFFDU);
  }
  return static_cast<std::uint64_t>(order) << 32 | tie;
}

// More blocks than a rank is counted for: one round a block, the best of those below the last one
// taken. Apart, because it is rarely run and code has to be fetched.
__device__ __noinline__ void select_rounds(const float* scores, int blocks, int last_group) {
  Context c = open_context({});
  const Shape& s = c.p.shape;
  auto* keys = reinterpret_cast<std::uint64_t*>(c.x);
  auto* chosen = keys;
  auto* best_of_warp = chosen + kMaxTopBlocks;
  std::uint64_t bound = ~0ULL;
#pragma unroll 1
  for (int k = 0; k < topk_of(s); ++k) {
    std::uint64_t best = 0;
#pragma unroll 1
    for (int b = c.thread; b < blocks; b += kThreads) {
      const std::uint64_t key = block_key(c, scores, b, blocks, last_group);
      if (key < bound && key > best) best = key;
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
      const std::uint64_t other = __shfl_xor_sync(0xFFFFFFFFU, best, d);
      best = other > best ? other : best;
    }
    if (c.lane == 0) best_of_warp[c.warp] = best;
    sync(c);
#pragma unroll 1
    for (int w = 0; w < kWarps; ++w) best = best_of_warp[w] > best ? best_of_warp[w] : best;
    bound = best;
    const auto tie = static_cast<std::uint32_t>(best);
    if (c.thread == 0) {
      chosen[k] = best >> 32 == 0xFFFFFFFFU ? tie : 0xFFFFFFFFU - tie;
    }
    sync(c);
  }
  if (c.thread < topk_of(s)) {
    const std::uint64_t mine = chosen[c.thread];
    int rank = 0;
#pragma unroll 1
    for (int i = 0; i < topk_of(s); ++i) rank += chosen[i] < mine ? 1 : 0;
    c.s.selected[rank] = static_cast<std::int32_t>(mine);
  }
}

constexpr int kRanked = 512;  // most blocks whose ranks are counted
// With the choice come the pages of all blocks, where a block is a page: an address less to wait
// for.
__device__ __forceinline__ bool pages_are_known(int position) {
  return kM3 && position / kPageTokens >= topk_of(shared().params.shape) &&
         position / kPageTokens < kRanked;
}
__device__ __forceinline__ std::int32_t* known_pages(const Context& c) {
  return reinterpret_cast<std::int32_t*>(c.red);
}

// Chosen blocks of (row, head), ascending, in s.selected; returns how many. All computing warps;
// scratch at c.x.
__device__ __forceinline__ int select_blocks(Context& c, int row, int head) {
  const Shape& s = c.p.shape;
  const int position = c.step().position[row];
  const int blocks = position / block_size_of(s) + 1;
  sync(c);
  if (blocks <= topk_of(s)) {
    if (c.thread < blocks) c.s.selected[c.thread] = c.thread;
    sync(c);
    return blocks;
  }
  const float* scores =
      c.p.scores + (static_cast<std::int64_t>(row) * s.index_heads + head) * c.p.score_stride;
  auto* keys = reinterpret_cast<std::uint64_t*>(c.x);
  if (blocks <= kRanked) {
    // Rank of every block by counting, eight threads a block.
    auto* chosen = reinterpret_cast<std::uint32_t*>(keys + kRanked);  // a bit each
    const int padded = (blocks + 7) & ~7;
    if (kM3 && c.thread < blocks) {
      known_pages(c)[c.thread] = table_of(c.p, c.step(), row)[c.thread];
    }
    if (c.thread < kRanked / 32) chosen[c.thread] = 0;
    if (c.thread < padded) {
      keys[c.thread] =
          c.thread < blocks ? block_key(c, scores, c.thread, blocks, position / 16) : 0;
    }
    sync(c);
#pragma unroll 1
    for (int first = 0; first < padded; first += kThreads / 8) {
      const int block = first + (c.thread >> 3);
      const std::uint64_t mine = block < blocks ? keys[block] : ~0ULL;
      int rank = 0;
#pragma unroll 4
      for (int i = c.thread & 7; i < padded; i += 8) rank += keys[i] > mine ? 1 : 0;
#pragma unroll
      for (int d = 1; d < 8; d <<= 1) rank += __shfl_xor_sync(0xFFFFFFFFU, rank, d);
      if (block < blocks && rank < topk_of(s) && (c.thread & 7) == 0) {
        atomicOr(chosen + block / 32, 1U << block % 32);
      }
    }
    sync(c);
    if (c.warp == 0) {
      int before = 0;
#pragma unroll 1
      for (int word = 0; word < (blocks + 31) / 32; ++word) {
        const std::uint32_t bits = chosen[word];
        if ((bits >> c.lane & 1U) != 0) {
          c.s.selected[before + __popc(bits & ((1U << c.lane) - 1))] = word * 32 + c.lane;
        }
        before += __popc(bits);
      }
    }
  } else {
    select_rounds(scores, blocks, position / 16);
  }
  sync(c);
  return topk_of(s);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

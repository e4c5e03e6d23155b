// Products with MiniMax-M3's experts: what item_products() computes, without a choice that is not
// theirs, in the same order.
#pragma once

#include "backend/cuda/device/gemv.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// What a warp knows of an item before its weights are there, so that nothing is looked up behind
// them.
struct ExpertItem {
  int x;   // where the activations lie that this lane's column reads, at part 0
  int to;  // for whoever stores its sums
};

// Units [begin, begin + units) of a run, an item a warp in turn. An item is one part of K, or two:
// copies of twelve tiles. item_of(unit, item): an item of those of this call. What a unit has no
// column for may read any staged row, as columns do not mix and its sums are not used.
// store(ExpertItem::to, part of the item, sums). `staggered`: half of the warps begin when the
// other half have done their first copy. Eight warps keep the arithmetic as busy as sixteen, and so
// the two halves take turns from then on: one computes while copies for the other are on their way.
template <typename K, typename I, typename S>
__device__ __forceinline__ void expert_products(Context& c, const Run& run, int begin, int units,
                                                bool staggered, I&& item_of, S&& store) {
  // Tiles in straight code: what a longer stretch saves in branches costs more in code that has to
  // be fetched.
  constexpr int kTogether = 2;
  constexpr int kTileBytes = 544;
  constexpr int kTileColumns = 128;               // bytes of activations that a tile meets
  constexpr int kPieces = K::kTiles / kTogether;  // of a part
  constexpr int kCopies = K::kSpan * K::kTiles * kTileBytes / kSlotBytes;
  static_assert(K::kTiles % kTogether == 0 && (kCopies == 1 || kCopies == K::kSpan) &&
                kCopies * kSlotBytes == K::kSpan * K::kTiles * kTileBytes &&
                (!kM3 || K::kChunkTiles * kTileBytes == kSlotBytes));
  const int items = units << run.log_items;
  const int mask = (1 << run.log_items) - 1;
  const int round = c.p.round;
  const int mine = c.warp < round ? (c.warp - c.turn) & (round - 1) : kWarps;
  // A round has no more items than the ring has slots.
  const auto wrap = [&](int& slot, std::uint32_t& wraps) {
    if (slot >= c.slots) slot -= c.slots, ++wraps;
  };
  if (staggered && mine < min(round, items) && mine >= round / 2) {
    int slot = c.slot + mine - round / 2;
    std::uint32_t wraps = c.wraps;
    wrap(slot, wraps);
    wait_released(slot, wraps);
  }
#pragma unroll 1
  for (int base = 0; base < items; base += round) {
    const int n = min(round, items - base);
    if (mine < n) {
      int slot = c.slot + mine;
      std::uint32_t wraps = c.wraps;
      wrap(slot, wraps);
      const int item = base + mine;
      const ExpertItem own = item_of(begin + (item >> run.log_items), item);
      int x = own.x + (item & mask) * (K::kSpan * K::kTiles * kTileColumns);
      const int to = own.to;
      int tile = 0;
      int scale = 0;
      // Defined before the loop: what seems to come from before it takes its registers from every
      // function of the kernel.
      TileMXFP4 t[2] = {};
#pragma unroll 1
      for (int part = 0; part < K::kSpan; ++part) {
        if (part == 0 || kCopies > 1) {
          tile = kFixedBytes + slot * kSlotBytes + c.lane * 16;
          scale = kFixedBytes + slot * kSlotBytes + 512 + (c.lane >> 2) * 4;
          if (!landed(slot, wraps)) wait_landed(slot, wraps);
          __syncwarp();
          t[0].fetch(tile, scale, x, 64);
        }
        const bool last = kCopies > 1 || part + 1 == K::kSpan;  // of the copy
        float acc[4] = {};
#pragma unroll 1
        for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
          for (int k = 1; k <= kTogether; ++k) {
            if (k < kTogether || piece + 1 < kPieces || !last)
              t[k & 1].fetch(tile + k * kTileBytes, scale + k * kTileBytes, x + k * kTileColumns,
                             64);
            t[(k - 1) & 1].add(acc);
          }
          tile += kTogether * kTileBytes;
          scale += kTogether * kTileBytes;
          x += kTogether * kTileColumns;
        }
        if (last) {
          __syncwarp();
          if (c.lane == 0) mbarrier_arrive(&c.s.empty[slot]);
          slot += n;
          wrap(slot, wraps);
        }
        store(
            to, part,
            float4{acc[0] * kPostE2M1, acc[1] * kPostE2M1, acc[2] * kPostE2M1, acc[3] * kPostE2M1});
      }
    }
    c.slot += n * kCopies;
    wrap(c.slot, c.wraps);
    if (kCopies > 1) wrap(c.slot, c.wraps);
  }
  c.turn = (c.turn + items) & (round - 1);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

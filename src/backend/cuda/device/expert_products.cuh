// Products with MiniMax-M3's experts: what item_products() computes, without a choice that is not
// theirs, in the same order.
#pragma once

#include "backend/cuda/device/gemv.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// Units [begin, begin + units) of a run, an item a warp in turn. An item is one part of K, or two,
// whose sums are added (gate and up) or stored apart (down): copies of twelve tiles. x_of(unit):
// where the activations lie that this lane's column reads, at part 0; what a unit has no such
// column for may be any staged row, as columns do not mix and its sums are not used. store(unit,
// entry, sums).
template <typename K, bool ADDED, typename X, typename S>
__device__ __forceinline__ void expert_products(Context& c, const Run& run, int begin, int units,
                                                X&& x_of, S&& store) {
  // Tiles in straight code: what a longer stretch saves in branches costs more in code that has to
  // be fetched.
  constexpr int kTiles = 2;
  constexpr int kTileBytes = 544;
  constexpr int kTileColumns = 128;  // bytes of activations that a tile meets
  constexpr int kPieces = kSlotBytes / (kTiles * kTileBytes);  // of a copy
  constexpr int kCopies = K::kSpan * K::kTiles / (kPieces * kTiles);
  static_assert(K::kSpan * K::kTiles == kCopies * kPieces * kTiles && (kCopies == 1 || ADDED) &&
                kCopies <= 2 && kPieces * kTiles * kTileBytes == kSlotBytes &&
                (!kM3 || K::kChunkTiles == kPieces * kTiles));
  const int items = units << run.log_items;
  const int mask = (1 << run.log_items) - 1;
  const int round = c.p.round;
  const int mine = c.warp < round ? (c.warp - c.turn) & (round - 1) : kWarps;
#pragma unroll 1
  for (int base = 0; base < items; base += round) {
    const int n = min(round, items - base);
    if (mine < n) {
      int slot = c.slot + mine;
      std::uint32_t wraps = c.wraps;
      wrap_slot(c.slots, slot, wraps);
      const int item = base + mine;
      const int unit = begin + (item >> run.log_items);
      const int part = (item & mask) * K::kSpan;
      int x = x_of(unit) + part * K::kTiles * kTileColumns;
      const auto post = [](const float(&v)[4]) {
        return float4{v[0] * kPostE2M1, v[1] * kPostE2M1, v[2] * kPostE2M1, v[3] * kPostE2M1};
      };
      float4 first = {};
#pragma unroll 1
      for (int copy = 0;; ++copy) {
        float acc[4] = {};
        int tile = kFixedBytes + slot * kSlotBytes + c.lane * 16;
        int scale = kFixedBytes + slot * kSlotBytes + 512 + (c.lane >> 2) * 4;
        if (!landed(slot, wraps)) wait_landed(slot, wraps);
        __syncwarp();
        TileMXFP4 t[2];
        t[0].fetch(tile, scale, x, 64);
#pragma unroll 1
        for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
          for (int k = 1; k <= kTiles; ++k) {
            if (k < kTiles || piece + 1 < kPieces)
              t[k & 1].fetch(tile + k * kTileBytes, scale + k * kTileBytes, x + k * kTileColumns,
                             64);
            t[(k - 1) & 1].add(acc);
          }
          tile += kTiles * kTileBytes;
          scale += kTiles * kTileBytes;
          x += kTiles * kTileColumns;
          if (K::kSpan == 2 && !ADDED && piece + 1 == kPieces / 2) {
            first = {acc[0], acc[1], acc[2], acc[3]};
            acc[0] = acc[1] = acc[2] = acc[3] = 0;
          }
        }
        __syncwarp();
        if (c.lane == 0) mbarrier_arrive(&c.s.empty[slot]);
        float4 sum = post(acc);
        if constexpr (kCopies == 2) {
          if (copy == 0) {
            first = sum;
            slot += n;
            wrap_slot(c.slots, slot, wraps);
            continue;
          }
          sum = {first.x + sum.x, first.y + sum.y, first.z + sum.z, first.w + sum.w};
        }
        if constexpr (K::kSpan == 2 && !ADDED) {
          const float of_first[4] = {first.x, first.y, first.z, first.w};
          store(unit, part, post(of_first));
          store(unit, part + 1, sum);
        } else {
          store(unit, part / K::kSpan, sum);
        }
        break;
      }
    }
    c.slot += n * kCopies;
    wrap_slot(c.slots, c.slot, c.wraps);
  }
  c.turn = (c.turn + items) & (round - 1);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

// The feeding warp copies weights into the ring in the order the other warps use them, as far ahead
// as the ring is deep and as addresses are known, with a cap on the bytes in flight. A lane has an
// item of a round: addresses are computed side by side, and copies leave eight at a time, each when
// its slot is free and the copy `cap` places earlier has landed.
#pragma once

#include "backend/cuda/device/units.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

struct Feed {
  int slot = 0;
  std::uint32_t phase = 0;
  std::uint32_t issued = 0;
  std::uint32_t routed_phase = 0;
  bool alive = true;
};

__device__ __forceinline__ void wait_landed(Shared& s, int slot, std::uint32_t phase, int back) {
  slot -= back;
  if (slot < 0) {
    slot += s.params.slots;
    phase ^= 1;
  }
  while (!mbarrier_try(&s.full[slot], phase)) {
  }
}

// Copies a run, in rounds of one item a warp; within a round copy by copy of all items. `stride`:
// from one expert to the next, 0 for a matrix that is not one of several. All lanes.
__device__ __noinline__ void feed_run(Feed& feed, const Run& run, std::int64_t stride) {
  constexpr int kTogether = 8;
  Shared& s = shared();
  const Matrix& m = run.m;
  Feed f = feed;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int slots = s.params.slots;
  const int cap = s.params.in_flight;  // at least kTogether
  const int round = s.params.round;
  const int tiles = m.span * m.tiles;
  const int item_bytes = tiles * m.tile_bytes;
  const int chunk_bytes = m.chunk_tiles * m.tile_bytes;
  const int log_items = run.log_items;
  const int items = run.units << log_items;
  const int batch = run.batch > 0 ? run.batch << log_items : items;
  int batch_end = min(batch, items);
#pragma unroll 1
  for (int base = 0; base < items && f.alive;) {
    const int n = min(round, batch_end - base);
    const int item = base + min(lane, n - 1);
    const Run::Place at = run.place(item >> log_items);
    const unsigned char* from =
        m.data + at.group * run.unit_bytes + (item & ((1 << log_items) - 1)) * item_bytes;
    if (stride != 0) from += s.table.expert[at.pass] * stride;
#pragma unroll 1
    for (int offset = 0; offset < item_bytes; offset += chunk_bytes) {
      const auto bytes = static_cast<std::uint32_t>(min(chunk_bytes, item_bytes - offset));
#pragma unroll 1
      for (int first = 0; first < n && f.alive; first += kTogether) {
        const int count = min(kTogether, n - first);
        const int own = lane - first;
        bool dead = false;
        bool sent = false;
        int slot = f.slot + max(own, 0);
        std::uint32_t phase = f.phase;
        wrap_slot(slots, slot, phase);
        if (own >= 0 && own < count) {
          if (f.issued + own >= static_cast<std::uint32_t>(cap)) {
            wait_landed(s, slot, phase, cap);
          }
          while (!mbarrier_try(&s.empty[slot], phase ^ 1)) {
            dead = s.abort != 0;
            if (dead) break;
          }
          sent = !dead;
          if (sent) {
            mbarrier_expect(&s.full[slot], bytes);
            bulk_copy(memory + kFixedBytes + slot * kSlotBytes, from + offset, bytes,
                      &s.full[slot]);
          }
        }
        f.alive = !__any_sync(0xFFFFFFFFU, dead);
        if (!f.alive) {
          if (sent) wait_landed(s, slot, phase, 0);
          break;
        }
        f.slot += count;
        wrap_slot(slots, f.slot, f.phase);
        f.issued += count;
        if (lane == 0) s.issued = f.issued;
      }
    }
    base += n;
    if (base == batch_end) batch_end = min(batch_end + batch, items);
  }
  feed = f;
}

__device__ __noinline__ void feed_share(Feed& f, const Matrix& m, int rows) {
#pragma unroll 1
  for (int pass = 0; pass < passes(rows) && f.alive; ++pass) {
    feed_run(f, share_of(m, block_of_rank(), blocks_of_rank()), 0);
  }
}
__device__ __forceinline__ void feed_router(Feed& f, const Matrix& m, int rows) {
#pragma unroll 1
  for (int pass = 0; pass < passes(rows) && f.alive; ++pass) {
    feed_run(f, items_of(m, block_of_rank(), blocks_of_rank()), 0);
  }
}

// Until the table of this layer's experts is there.
__device__ __forceinline__ void wait_routed(Feed& f) {
  Shared& s = shared();
  bool dead = false;
  while (f.alive && !dead && !mbarrier_try(&s.routed, f.routed_phase)) dead = s.abort != 0;
  f.alive = f.alive && !__any_sync(0xFFFFFFFFU, dead);
  f.routed_phase ^= 1;
}

__device__ __noinline__ void feed_gate_up(Feed& f, const Matrix& m, int first, int end, int offset,
                                          int rows, std::int64_t stride) {
  gate_up_runs(m, first, end, offset, rows, block_of_rank(), blocks_of_rank(), [&](const Run& run) {
    if (f.alive) feed_run(f, run, stride);
  });
}
__device__ __noinline__ void feed_down(Feed& f, const Layer& layer) {
  const Shared& s = shared();
  down_batches(s.params, layer, s.table, block_of_rank(), blocks_of_rank(),
               [&](const DownBatch& batch) {
#pragma unroll 1
                 for (int part = 0; part < 2; ++part) {
                   const Run run = batch.run(layer, s.table, part);
                   if (run.units > 0 && f.alive)
                     feed_run(f, run, part == 0 ? layer.down_stride : 0);
                 }
               });
}

// Copies in flight must land before the block may end.
__device__ __forceinline__ void drain(const Feed& f) {
  Shared& s = shared();
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const auto cap = static_cast<std::uint32_t>(s.params.in_flight);
  if (lane < static_cast<int>(min(f.issued, cap))) wait_landed(s, f.slot, f.phase, lane + 1);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

// The feeding warp: one lane copies weights into the ring in the order the other warps use them,
// as far ahead as the ring is deep and as addresses are known, with a cap on the bytes in flight.
#pragma once

#include "backend/cuda/device/context.cuh"

namespace monolayer::cuda {

struct Feed {
  const Params& p;
  Shared& s;
  unsigned char* ring;
  int block, blocks;
  int slot = 0;
  std::uint32_t phase = 0;
  int oldest = 0;  // in flight
  std::uint32_t oldest_phase = 0;
  int in_flight = 0;
  std::uint32_t routed_phase = 0;
  bool alive = true;

  __device__ void retire() {
    while (!mbarrier_try(&s.full[oldest], oldest_phase)) {
    }
    next_slot(p.slots, oldest, oldest_phase);
    --in_flight;
  }
  // A free slot that expects `bytes`.
  __device__ unsigned char* acquire(int bytes) {
    if (in_flight >= p.in_flight) retire();
    while (!mbarrier_try(&s.empty[slot], phase ^ 1)) {
      if (s.abort == 0) continue;
      alive = false;
      return nullptr;
    }
    mbarrier_expect(&s.full[slot], static_cast<std::uint32_t>(bytes));
    return ring + slot * kSlotBytes;
  }
  __device__ void release() {
    next_slot(p.slots, slot, phase);
    ++in_flight;
  }

  // Row groups [group, group + count) of one matrix, chunk by chunk.
  __device__ void wave(const Matrix& m, const unsigned char* data, int group, int count) {
    const int piece = m.piece;
    const unsigned char* from = data + group * m.group_bytes;
    for (int chunk = 0; chunk < m.chunks && alive; ++chunk) {
      unsigned char* to = acquire(count * piece);
      if (to == nullptr) return;
      for (int i = 0; i < count; ++i) {
        bulk_copy(to + i * piece,
                  from + i * m.group_bytes + static_cast<std::int64_t>(chunk) * piece,
                  static_cast<std::uint32_t>(piece), &s.full[slot]);
      }
      release();
    }
  }
  __device__ void share(const Matrix& m, int rows) {
    const Share mine(m.row_groups, block, blocks);
    const int step = wave_groups(m);
    for (int pass = 0; pass < passes(rows); ++pass) {
      for (int g = mine.begin; g < mine.end; g += step) wave(m, m.data, g, min(step, mine.end - g));
    }
  }
  // Items of a router: (part, row group), each a run of tiles.
  __device__ void router(const Matrix& m, int rows) {
    const int tiles = m.chunks * m.steps;
    const std::int64_t item_bytes = static_cast<std::int64_t>(tiles) * m.tile_bytes;
    const Share mine(m.row_groups * m.parts, block, blocks);
    for (int pass = 0; pass < passes(rows); ++pass) {
      for (int item = mine.begin; item < mine.end; ++item) {
        for (int tile = 0; tile < tiles && alive; tile += kRouterChunk) {
          const int bytes = min(kRouterChunk, tiles - tile) * m.tile_bytes;
          unsigned char* to = acquire(bytes);
          if (to == nullptr) return;
          bulk_copy(to, m.data + item * item_bytes + static_cast<std::int64_t>(tile) * m.tile_bytes,
                    static_cast<std::uint32_t>(bytes), &s.full[slot]);
          release();
        }
      }
    }
  }
  // Until the table of this layer's experts is there.
  __device__ void wait_routed() {
    while (alive && !mbarrier_try(&s.routed, routed_phase)) {
      if (s.abort != 0) alive = false;
    }
    routed_phase ^= 1;
  }
  __device__ void gate_up(const Layer& layer, int rows) {
    if (layer.shared_gate_up.row_groups > 0) {
      for (int pass = 0; pass < passes(rows); ++pass) {
        for (int g = block; g < layer.shared_gate_up.row_groups; g += blocks) {
          wave(layer.shared_gate_up, layer.shared_gate_up.data, g, 1);
        }
      }
    }
    wait_routed();
    if (!alive || layer.moe == 0) return;
    const Matrix& m = layer.gate_up;
    const Table& t = s.table;
    const int first = layer.shared_gate_up.row_groups;
    const int total = (t.passes - t.shared_passes) * m.row_groups;
    for_units(total, first, rows, [&](int unit) {
      const int pass = t.shared_passes + unit / m.row_groups;
      wave(m, m.data + t.expert[pass] * layer.gate_up_stride, unit % m.row_groups, 1);
    });
  }
  __device__ void down(const Layer& layer) {
    const Table& t = s.table;
    const Matrix& shape = layer.moe != 0 ? layer.down : layer.shared_down;
    const Share mine(shape.row_groups, block, blocks);
    const int step = wave_groups(shape);
    for (int g = mine.begin; g < mine.end; g += step) {
      const int count = min(step, mine.end - g);
      for (int i = 0; i < t.passes; ++i) {
        const int pass = down_pass(t, i);
        if (t.expert[pass] < 0) {
          wave(layer.shared_down, layer.shared_down.data, g, count);
        } else {
          wave(layer.down, layer.down.data + t.expert[pass] * layer.down_stride, g, count);
        }
      }
    }
  }
  // Copies in flight must land before the block may end.
  __device__ void drain() {
    while (in_flight > 0) retire();
  }

  // Units of this block: dealt out one by one while all rows' activations fit in shared memory,
  // else contiguous, so that a block serves few experts.
  template <typename F>
  __device__ void for_units(int total, int offset, int rows, F&& f) const {
    for_units_of(total, offset, rows, block, blocks, f);
  }
  template <typename F>
  __device__ static void for_units_of(int total, int offset, int rows, int block, int blocks,
                                      F&& f) {
    const bool dealt = rows <= kColumns;
    const Share mine(total, block, blocks);
    const int begin = dealt ? (block + blocks - offset % blocks) % blocks : mine.begin;
    const int end = dealt ? total : mine.end;
#pragma unroll 1
    for (int unit = begin; unit < end; unit += dealt ? blocks : 1) f(unit);
  }
  // Down adds routed experts by ascending id, then the shared one; passes hold the shared first.
  __device__ static int down_pass(const Table& t, int i) {
    const int routed = t.passes - t.shared_passes;
    return i < routed ? t.shared_passes + i : i - routed;
  }
};

}  // namespace monolayer::cuda

// The feeding warps copy weights into the ring in the order the other warps use them, as far ahead
// as the ring is deep and as addresses are known, with a cap on the copies in flight: whatever else
// the blocks tell each other waits behind them. A lane feeds one slot: it sends that slot's next
// copy when the slot is free, whatever the other slots wait for. Two warps, because a copy takes
// one longer than its bytes take memory while the others compute.
#pragma once

#include "backend/cuda/device/units.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

struct Feed {
  int slot = 0;             // of the next copy
  std::uint32_t wraps = 0;  // of the ring before it
  std::uint32_t routed_phase = 0;
  bool alive = true;
};

// What the passes of a run are.
enum class Passes {
  kSame,     // the matrix again
  kExperts,  // that expert's
  kParts,    // other parts of its rows
};

__device__ __forceinline__ int feeder() { return static_cast<int>(threadIdx.x - kThreads) / 32; }
// The slot this lane feeds, if there is one of that number.
__device__ __forceinline__ int fed_slot() {
  return (static_cast<int>(threadIdx.x) & 31) * kFeeders + feeder();
}

// Copies a run, in rounds of one item a warp; within a round copy by copy of all items, `span`
// parts of K each in `chunks` copies. `stride`: from one pass to the next. All lanes.
__device__ __noinline__ void feed_run(Feed& feed, const Run& run, Passes passes,
                                      std::int64_t stride, int span, int chunks) {
  Shared& s = shared();
  const Matrix& m = run.m;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int slots = s.params.slots;
  const int round = s.params.round;
  const int own_slot = fed_slot();
  // Each feeding warp counts its own.
  const int cap = max(
      1, (passes == Passes::kExperts ? s.params.in_flight : s.params.known_in_flight) / kFeeders);
  const int item_bytes = span * m.tiles * m.tile_bytes;
  const int chunk_bytes = m.chunk_tiles * m.tile_bytes;
  const int log_items = run.log_items;
  const int items = run.units << log_items;
  const int batch = run.batch > 0 ? run.batch << log_items : items;
  const int copies = items * chunks;
  // A step's weights are more than the second-level cache: what stays there should be code,
  // activations and hand-offs.
  const std::uint64_t policy = read_once_policy();
  const bool feeds = own_slot < slots;
  const std::uint32_t empty = shared_address(&s.empty[own_slot]);
  const std::uint32_t full = shared_address(&s.full[own_slot]);
  // This lane's next copy, of the round of n items from `base` on that begins with copy `begin`.
  int copy = feeds ? own_slot - feed.slot : copies;
  std::uint32_t wraps = feed.wraps;
  if (copy < 0) {
    copy += slots;
    ++wraps;
  }
  int base = 0;
  int begin = 0;
  int batch_end = min(batch, items);
  int n = min(round, batch_end);
  const unsigned char* from = nullptr;
  std::uint32_t bytes = 0;
  const auto locate = [&] {
    while (copy - begin >= n * chunks) {
      begin += n * chunks;
      base += n;
      if (base == batch_end) batch_end = min(batch_end + batch, items);
      n = min(round, batch_end - base);
    }
    int own = copy - begin;
    int offset = 0;
    while (own >= n) {
      own -= n;
      offset += chunk_bytes;
    }
    const int item = base + own;
    const Run::Place at = run.place(item >> log_items);
    from =
        m.data + at.group * run.unit_bytes + (item & ((1 << log_items) - 1)) * item_bytes + offset;
    if (passes == Passes::kExperts) from += s.table.expert[at.pass] * stride;
    if ((kNormsByPart || kDenseM3) && passes == Passes::kParts) from += at.pass * stride;
    bytes = static_cast<std::uint32_t>(min(chunk_bytes, item_bytes - offset));
  };
  bool more = copy < copies;
  if (more) locate();
  bool located = true;
  // What is on its way: this lane's last copy, also one of a run before.
  std::uint32_t issued = feeds ? s.issued[own_slot] : 0;
  bool flying = issued != 0;
#pragma unroll 1
  while (__any_sync(0xFFFFFFFFU, more)) {
    if (flying) flying = !mbarrier_test(full, (issued - 1) & 1);
    const bool ready = more && located && !flying && mbarrier_test(empty, (wraps & 1) ^ 1);
    const int room = cap - __popc(__ballot_sync(0xFFFFFFFFU, flying));
    // The oldest copies first: lanes from the oldest one's on, then the others.
    const int oldest = __reduce_min_sync(0xFFFFFFFFU, more ? copy : copies);
    const std::uint32_t all = __ballot_sync(0xFFFFFFFFU, ready);
    const int first =
        __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFU, more && copy == oldest))) - 1;
    std::uint32_t before = all & ((1U << lane) - 1);
    const std::uint32_t below = (1U << max(first, 0)) - 1;
    if (lane >= first) {
      before &= ~below;
    } else {
      before |= all & ~below;
    }
    const bool sends = ready && __popc(before) < room;
    if (sends) {
      mbarrier_expect(&s.full[own_slot], bytes);
      bulk_copy(memory() + kFixedBytes + own_slot * kSlotBytes, from, bytes, &s.full[own_slot],
                policy);
      s.issued[own_slot] = issued = ++wraps;
      flying = true;
      copy += slots;
      more = copy < copies;
      located = false;
    }
    if (__any_sync(0xFFFFFFFFU, sends)) continue;
    // Where the next copies come from, of all lanes at once, while there is none to send.
    if (more && !located) locate();
    located = true;
    if (s.abort != 0) more = false;
  }
  feed.alive = !__any_sync(0xFFFFFFFFU, s.abort != 0);
  const int end = feed.slot + copies;
  feed.wraps += static_cast<std::uint32_t>(end / slots);
  feed.slot = end % slots;
}

__device__ __noinline__ void feed_share(Feed& f, const Matrix& m, bool wide, int rows) {
#pragma unroll 1
  for (int pass = 0; pass < (wide ? 1 : passes(rows)) && f.alive; ++pass) {
    feed_run(f, share_of(m, wide, block_of_rank(), blocks_of_rank()), Passes::kSame, 0, m.span,
             m.chunks);
  }
}
__device__ __forceinline__ void feed_items(Feed& f, const Matrix& m, bool by_part, bool wide,
                                           int rows) {
#pragma unroll 1
  for (int pass = 0; pass < (wide ? 1 : passes(rows)) && f.alive; ++pass) {
    feed_run(f, items_of(m, by_part, block_of_rank(), blocks_of_rank()),
             by_part ? Passes::kParts : Passes::kSame, bytes_of_item(m), m.span, m.chunks);
  }
}

// By halves of K.
__device__ __noinline__ void feed_halves(Feed& f, const Matrix& m) {
#pragma unroll 1
  for (int half = 0; half < 2 && f.alive; ++half) {
    feed_run(f, half_share_of(m, half, block_of_rank(), blocks_of_rank()), Passes::kParts,
             kHalfParts * bytes_of_item(m), m.span, m.chunks);
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
    if (f.alive)
      feed_run(f, run, stride != 0 ? Passes::kExperts : Passes::kSame, stride, GateUpKind::span(m),
               GateUpKind::chunks(m));
  });
}
// The routed experts' run of a batch of down, or the shared one's.
__device__ __forceinline__ void feed_down_run(Feed& f, const Run& run, const Layer& layer,
                                              int part) {
  feed_run(f, run, part == 0 ? Passes::kExperts : Passes::kSame, layer.down_stride,
           DownKind::span(run.m), DownKind::chunks(run.m));
}
// `ONE_ROW`: the fused kernel for one row, whose experts meet in one batch of some row groups.
template <bool ONE_ROW>
__device__ __noinline__ void feed_down(Feed& f, const Layer& layer) {
  const Shared& s = shared();
  if constexpr (ONE_ROW) {
    const int together = down_groups_of_row(s.params, layer, s.table);
    const Share mine(layer.down.row_groups, block_of_rank(), blocks_of_rank());
#pragma unroll 1
    for (int g = mine.begin; g < mine.end && f.alive; g += together) {
      const DownBatch batch{
          g, min(together, mine.end - g), 0, s.table.passes, 0, s.table.slots, 0, true};
#pragma unroll 1
      for (int part = 0; part < 2 && f.alive; ++part) {
        feed_down_run(f, batch.run(layer, s.table, part), layer, part);
      }
    }
    return;
  }
  down_batches(s.params, layer, s.table, static_cast<int>(threadIdx.x) & 31, block_of_rank(),
               blocks_of_rank(), [&](const DownBatch& batch) {
#pragma unroll 1
                 for (int part = 0; part < 2; ++part) {
                   const Run run = batch.run(layer, s.table, part);
                   if (run.units > 0 && f.alive) feed_down_run(f, run, layer, part);
                 }
               });
}

// Copies in flight must land before the block may end.
__device__ __forceinline__ void drain() {
  Shared& s = shared();
  const int slot = fed_slot();
  if (slot >= s.params.slots || s.issued[slot] == 0) return;
  while (!mbarrier_try(&s.full[slot], (s.issued[slot] - 1) & 1)) {
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

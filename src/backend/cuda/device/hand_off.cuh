// Hand-offs between blocks of the fused kernels that count: every stage has a counter of the blocks
// that have finished it, or of the items of the router's (in those that hand over words only some:
// for one row the scores of steps of more than 65,536 tokens, for two to four rows heads, attention
// and partial logits). Counters only grow, a layer adds the same number each time.
#pragma once

#include "backend/cuda/device/give_up.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// Blocks that do some of a stage's work, in every layer of a run; its layers are all sparse or all
// dense.
__device__ __forceinline__ int arrivals(int stage) {
  const Shared& s = shared();
  const Shape& shape = s.params.shape;
  int units = blocks_of_rank();
  if (stage == kAttend)
    units = rows_of(s.step) * shape.kv_heads * s.step.max_chunks[is_sparse(s.layers[0]) ? 1 : 0];
  if (stage == kPostNorm) units = kRouterParts;
  if (stage == kMerge) units = rows_of(s.step) * shape.heads;
  if (stage == kRouter) {
    const Matrix& m = s.layers[0].router;
    units = m.row_groups << m.log_items;
    // In the kernels for M3 every warp with an item arrives for itself, in every pass.
    if (kM3) return units * passes(rows_of(s.step));
  }
  return min(units, blocks_of_rank());
}

__device__ __noinline__ void store_stamp(int layer, int stage, int which) {
  const Params& p = shared().params;
  p.stamps[(((layer - p.first_layer) * kStages + stage) * 2 + which) * blocks_of_rank() +
           block_of_rank()] = static_cast<std::uint32_t>(clock64());
}

__device__ __forceinline__ void stamp(int layer, int stage, int which) {
  if (shared().params.stamps != nullptr) store_stamp(layer, stage, which);
}

__device__ __forceinline__ void mark_end(int layer, int stage) {
  if (threadIdx.x == 0) stamp(layer, stage, 1);
}

// This block's part of `stage` is done and visible to whoever waits for it.
__device__ __noinline__ void arrive(int layer, int stage) {
  const Shared& s = shared();
  sync();
  if (threadIdx.x != 0 || s.abort != 0) return;
  stamp(layer, stage, 1);
  if (is_stalled(stage)) return;
  add_release(s.params.barrier + stage * kBarrierStride, 1);
}

// The same of one warp, for a stage whose arrivals are items.
__device__ __forceinline__ void arrive_item(int layer, int stage) {
  const Shared& s = shared();
  __syncwarp();
  if ((threadIdx.x & 31) != 0 || s.abort != 0) return;
  stamp(layer, stage, 1);
  if (is_stalled(stage)) return;
  add_release(s.params.barrier + stage * kBarrierStride, 1);
}

// Until all blocks have finished `stage` of `layer`, by one thread, with a deadline; the first
// block that gives up leaves a record, which makes all others give up.
__device__ __noinline__ void poll_arrivals(int layer, int stage) {
  const Shared& s = shared();
  const Params& p = s.params;
  if (s.abort != 0) return;
  const auto target = static_cast<std::uint32_t>(arrivals(stage) * (layer + 1 - p.first_layer));
  const std::uint32_t* counter = p.barrier + stage * kBarrierStride;
  std::uint64_t start = 0;
  std::uint32_t seen = 0;
  for (std::uint32_t polls = 1; (seen = load_acquire(counter)) < target; ++polls) {
    if (polls % 256 == 0 &&
        give_up(start, {.layer = layer, .stage = stage, .region = kArrivals}, target, seen)) {
      return;
    }
  }
}

// The same by all computing threads, before they begin `next`. False if the block gave up: one
// answer for all warps, as another wait may give up before the last one has looked.
__device__ __noinline__ bool wait_for(int layer, int stage, int next, int poller = 0) {
  if (threadIdx.x == poller) {
    poll_arrivals(layer, stage);
    stamp(stage == kDown ? layer + 1 : layer, next, 0);
  }
  __syncwarp();  // a warp meets the others as one
  return !sync_or(shared().abort != 0);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

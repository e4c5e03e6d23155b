// A block's view of its launch: shared memory, the weight ring, waits with deadlines.
#pragma once

#include "backend/cuda/device/decode.cuh"
#include "backend/cuda/device/ptx.cuh"
#include "backend/cuda/params.h"

namespace monolayer::cuda {

inline constexpr int kMaxSlots = 16;
inline constexpr int kRedBytes = 2 * kWarps * 512;        // sums of a wave, twice
inline constexpr int kAccBytes = kWarps * kMaxRows * 64;  // down: 16 outputs of 16 rows a warp
inline constexpr int kScratchBytes = kRedBytes + kAccBytes;

// What a warp carries from one stage to the next.
struct State {
  int slot;  // of the ring
  std::uint32_t phase;
  std::uint32_t target;  // of the grid barrier
  int turn;              // which half of the sums
  int norm_turn;
  int current;  // of Shared::layers
  int staged;   // part_cols of the layout in which x holds the step's normed rows; 0: it does not
};

// Fixed part of shared memory; the ring follows, then the activations.
struct Shared {
  alignas(16) unsigned char scratch[kScratchBytes];
  alignas(16) Layer layers[2];   // the run's current layer and the next one
  alignas(16) Layer feed_layer;  // the one the feeding warp has reached
  alignas(16) StepRows step;
  alignas(16) Params params;  // functions reach the kernel's own argument only slowly
  alignas(16) Table table;
  float sums[2][kWarps];
  float route_weight[kMaxRows][kMaxChosen];
  std::int32_t count[kMaxExperts];
  std::int32_t selected[kMaxTopBlocks];
  std::uint64_t full[kMaxSlots], empty[kMaxSlots], routed;
  State state[kWarps];
  alignas(16) unsigned char zero[16];  // what columns without a row read
  volatile std::int32_t abort;
};
// 128 bytes each, so that bulk copies start aligned.
inline constexpr int kFixedBytes = (static_cast<int>(sizeof(Shared)) + 127) / 128 * 128;

// All dynamic shared memory of a block: Shared, the ring, the activations.
extern __shared__ __align__(128) unsigned char memory[];

// A block's view for the length of one stage; lives in registers, so whatever takes it is inlined.
struct Context : State {
  const Params& p;
  Shared& s;
  unsigned char* ring;
  unsigned char* x;  // activations of up to eight columns
  int thread, warp, lane, block, blocks, slots;

  __device__ const Layer& layer() const { return s.layers[current]; }
  __device__ const StepRows& step() const { return s.step; }
};

__device__ __forceinline__ Shared& shared() { return *reinterpret_cast<Shared*>(memory); }

__device__ __forceinline__ Context open_context() {
  Shared& s = shared();
  const int thread = static_cast<int>(threadIdx.x);
  unsigned char* ring = memory + kFixedBytes;
  return {s.state[thread / 32],
          s.params,
          s,
          ring,
          ring + s.params.slots * kSlotBytes,
          thread,
          thread / 32,
          thread % 32,
          static_cast<int>(blockIdx.x),
          static_cast<int>(gridDim.x),
          s.params.slots};
}
__device__ __forceinline__ void close_context(const Context& c) {
  __syncwarp();
  if (c.lane == 0) c.s.state[c.warp] = c;
  __syncwarp();
}

// All computing warps of the block.
__device__ __forceinline__ void sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}
__device__ __forceinline__ void sync(const Context&) { sync(); }

// False if the block gave up.
__device__ __forceinline__ bool wait(const Context& c, std::uint64_t* b, std::uint32_t parity) {
  while (!mbarrier_try(b, parity)) {
    if (c.s.abort != 0) return false;
  }
  return true;
}

// Every block of the grid. The counter only grows; thread 0 polls it with a deadline, and the first
// block that gives up leaves a record, which makes all others give up.
__device__ __forceinline__ bool grid_sync(Context& c, int layer, int stage) {
  sync(c);
  if (c.thread == 0 && c.s.abort == 0) {
    c.target += static_cast<std::uint32_t>(c.blocks);
    if (c.block != c.p.stall_block) add_release(c.p.barrier, 1);
    std::uint32_t seen = load_acquire(c.p.barrier);
    if (seen < c.target) {
      std::uint64_t start = 0;
      for (std::uint32_t polls = 1; (seen = load_acquire(c.p.barrier)) < c.target; ++polls) {
        if (polls % 256 != 0) continue;
        if (load_relaxed(&c.p.record->set) != 0) {
          c.s.abort = 1;
          break;
        }
        const std::uint64_t now = global_timer();
        if (start == 0) start = now;
        if (now - start < c.p.deadline_ns) continue;
        if (atomicCAS(&c.p.record->set, 0U, 1U) == 0U) {
          c.p.record->block = static_cast<std::uint32_t>(c.block);
          c.p.record->layer = static_cast<std::uint32_t>(layer);
          c.p.record->stage = static_cast<std::uint32_t>(stage);
          c.p.record->expected = c.target;
          c.p.record->seen = seen;
        }
        c.s.abort = 1;
        break;
      }
    }
  }
  sync(c);
  return c.s.abort == 0;
}

__device__ __forceinline__ void next_slot(int slots, int& slot, std::uint32_t& phase) {
  if (++slot == slots) {
    slot = 0;
    phase ^= 1;
  }
}

// Row groups [begin, end) of a matrix that belong to this block: contiguous, equal to within one.
struct Share {
  int begin, end;
  __device__ Share(int total, int block, int blocks)
      : begin(total * block / blocks), end(total * (block + 1) / blocks) {}
};

// Row groups that the eight warps work on at once, a part of K each.
__device__ __forceinline__ int wave_groups(const Matrix& m) { return kWarps >> m.log_parts; }

__device__ __forceinline__ int passes(int rows) { return (rows + kColumns - 1) / kColumns; }

}  // namespace monolayer::cuda

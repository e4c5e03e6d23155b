// A block's view of its launch: shared memory, the weight ring, waits with deadlines.
#pragma once

#include "backend/cuda/device/decode.cuh"
#include "backend/cuda/device/known.cuh"
#include "backend/cuda/device/ptx.cuh"
#include "backend/cuda/head_plan.h"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// What a warp carries from one stage to the next.
struct alignas(16) State {
  int slot;               // of the ring, that the next copy is in
  std::uint32_t wraps;    // of the ring before it
  int turn;               // warp that takes the next item
  int half;               // of the sums
  std::uint32_t batches;  // of sums in gate_up, so far
  int staged;  // layout in which x holds the step's normed rows after attention; -1: it does not
  int layers_done;      // of the run; the layer's copy in Shared::layers goes by its parity
  std::int16_t routed;  // which half of gate_up
  bool normed;          // rows come from Params::normed
  bool rehearsal;       // what a stage reads is not there yet
};
static_assert(sizeof(State) == 32);

// Fixed part of shared memory; the ring follows, then the activations, then sums.
struct Shared {
  State states[kWarps];
  alignas(16) Layer layers[2];              // the run's current layer and the next one
  alignas(16) Layer feed_layers[kFeeders];  // those the feeding warps have reached
  alignas(16) StepRows step;
  alignas(16) Params params;  // functions reach the kernel's own argument only slowly
  alignas(16) Table table;
  alignas(16) float sums[kColumns][kWarps];
  float factor[kColumns];
  float route_weight[kMaxRows][kMaxChosen];
  alignas(16) std::uint8_t experts[kMaxRows * kMaxChosen];  // of the choices, row by row
  alignas(16) std::uint8_t begins[kMaxRows * kMaxChosen];   // 0xFF: the choice begins a pass
  std::uint64_t full[kMaxSlots], empty[kMaxSlots], routed;
  std::uint64_t red_done[2], red_free[2];      // halves of the sums, in gate_up
  alignas(16) unsigned char zero[16];          // what columns without a row read
  volatile std::uint32_t issued[kMaxSlots];    // copies into each slot so far
  volatile std::int32_t fed_layers[kFeeders];  // of the run, whose table each has read to its end
  alignas(16) HeadPlan heads;
  volatile std::int32_t abort;
  std::int32_t block, blocks;  // of this rank
  // Where activations lie in all of shared memory, and sums at its end: two halves of red_entries x
  // 16 rows x red_columns, between products at least kWarps x 128 floats of scratch.
  std::int32_t x_at, sums_at;
  std::uint32_t rows_divider,
      chunks_divider;  // divider() of rows and of max_chunks[kDenseM3 ? 0 : 1]
  // Of exchanges with other ranks: where this one's words of the first site go at each of them, and
  // where it finds theirs; words of a site; the step's tag; whether tests disturb them.
  std::uint64_t* push[kMaxRanks];
  const std::uint64_t* pull;
  std::int32_t site_words;
  std::uint32_t step_tag;
  std::int32_t tested;
};
// 128 bytes each, so that bulk copies start aligned.
inline constexpr int kFixedBytes = (static_cast<int>(sizeof(Shared)) + 127) / 128 * 128;

// All dynamic shared memory of a block: Shared, the ring, the activations, the sums. By its
// address, a constant of the architecture (kSharedBase, which the chain and every launch
// compare): by name the compiler asks the hardware which block of a cluster this is at every use,
// and waits for the answer.
extern __shared__ __align__(128) unsigned char named_memory[];
__device__ __forceinline__ unsigned char* memory() {
  return static_cast<unsigned char*>(__cvta_shared_to_generic(kSharedBase));
}

__device__ __forceinline__ Shared& shared() { return *reinterpret_cast<Shared*>(memory()); }

// Once a launch, by one thread.
__device__ __forceinline__ void divide_memory(int slots, int x_bytes) {
  shared().x_at = kFixedBytes + slots * kSlotBytes;
  shared().sums_at = shared().x_at + x_bytes;
}

// A warp's state as its stage found it. By way of shared memory: as an argument and a result of a
// stage it would go through local memory at every call. All lanes of a warp store the same.
__device__ __forceinline__ const State& own_state() { return shared().states[threadIdx.x / 32]; }

// Which of this rank's blocks this is, and how many there are: a launch may hold several ranks.
__device__ __forceinline__ int block_of_rank() { return shared().block; }
__device__ __forceinline__ int blocks_of_rank() { return shared().blocks; }

// The same as values that take no register from one use to the next.
struct BlockOfRank {
  __device__ operator int() const { return block_of_rank(); }
};
struct BlocksOfRank {
  __device__ operator int() const { return blocks_of_rank(); }
};

// A block's view of its launch; lives in registers, so whatever takes it is inlined.
struct Context : State {
  const Params& p;
  Shared& s;
  unsigned char* x;  // activations; keys and scratch of heads and attention; sums of down
  float* red;        // two halves of red_entries x 16 rows x red_columns
  int thread, warp, lane;
  BlockOfRank block;
  BlocksOfRank blocks;
  int slots;

  __device__ const Layer& layer() const { return s.layers[layers_done & 1]; }
  __device__ const StepRows& step() const { return s.step; }
  __device__ int rows() const { return rows_of(s.step); }
};

__device__ __forceinline__ int layer_of(const Context& c) {
  return c.p.first_layer + c.layers_done;
}

// The thread's number comes from where the compiler cannot see that it is the same in every stage:
// what it would keep from one stage to the next does not fit in registers.
__device__ __forceinline__ Context open_context(const State& state) {
  Shared& s = shared();
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  return {state,
          s.params,
          s,
          memory() + s.x_at,
          reinterpret_cast<float*>(memory() + s.sums_at),
          thread,
          thread / 32,
          thread % 32,
          {},
          {},
          s.params.slots};
}

// All computing warps of the block.
__device__ __forceinline__ void sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}
__device__ __forceinline__ void sync(const Context&) { sync(); }
// The warps that route while others do something else.
inline constexpr int kRoutingWarps = kWarps / 2;
inline constexpr int kRoutingThreads = kRoutingWarps * 32;
__device__ __forceinline__ void sync_routing() {
  asm volatile("bar.sync 2, %0;" ::"n"(kRoutingThreads) : "memory");
}
// The same, and whether any thread said so. `bar`, not `barrier`: whole warps come, so the compiler
// makes no path for parts of one.
template <int BARRIER, int THREADS>
__device__ __forceinline__ bool meet_or(bool own) {
  std::uint32_t any = 0;
  asm volatile(
      "{.reg .pred p, q; setp.ne.u32 q, %1, 0; bar.red.or.pred p, %2, %3, q; "
      "selp.u32 %0, 1, 0, p;}"
      : "=r"(any)
      : "r"(own ? 1U : 0U), "n"(BARRIER), "n"(THREADS)
      : "memory");
  return any != 0;
}
__device__ __forceinline__ bool sync_or(bool own) { return meet_or<1, kThreads>(own); }
__device__ __forceinline__ bool sync_routing_or(bool own) {
  return meet_or<2, kRoutingThreads>(own);
}

__device__ __forceinline__ void wrap_slot(int slots, int& slot, std::uint32_t& wraps) {
  while (slot >= slots) {
    slot -= slots;
    ++wraps;
  }
}

// n / the number of blocks, for n below 2^24: the high word of a product.
__device__ __forceinline__ int over_blocks(int n) {
  const std::uint32_t divider = shared().params.blocks_divider;
  return divider == 0 ? n : static_cast<int>(__umulhi(static_cast<std::uint32_t>(n), divider));
}

// [begin, end) of `total` that belong to this block: contiguous, equal to within one, the first
// blocks have one more.
struct Share {
  int begin, end;
  __device__ Share(int total, int block, int blocks) {
    const int each = over_blocks(total);
    const int more = total - each * blocks;
    begin = block * each + min(block, more);
    end = begin + each + (block < more ? 1 : 0);
  }
  __device__ int count() const { return end - begin; }
};

__device__ __forceinline__ int passes(int rows) {
  return kOnePass ? 1 : (rows + kColumns - 1) / kColumns;
}

// What rows are counted to in steps of kColumns: one step, if it is known to be one.
__device__ __forceinline__ int pass_rows(const Context& c) { return kOnePass ? 1 : c.rows(); }

// The first block that merges `heads` heads: the one after those that attend to `units`, if there
// are enough. Code that a block does not run does not push out of the instruction cache what it
// will run again.
__device__ __forceinline__ int first_after(int units, int heads) {
  return units + heads <= blocks_of_rank() ? units : 0;
}
__device__ __forceinline__ int first_to_merge(bool sparse) {
  if (!kM3) return 0;
  const Shared& s = shared();
  const Shape& shape = s.params.shape;
  const int rows = rows_of(s.step);
  return first_after(rows * shape.kv_heads * s.step.max_chunks[sparse ? 1 : 0], rows * shape.heads);
}

// Slots of the routed experts; the shared expert's follow.
__device__ __forceinline__ int routed_slots(const Shared& s, const Layer& layer) {
  return has_experts(layer) ? rows_of(s.step) * chosen_of(s.params.shape) : 0;
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

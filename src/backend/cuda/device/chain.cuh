// The kernel: any run of stages over any run of layers. The native chain launches it once per
// stage; the fused path launches it once for all layers, cooperatively, with hand-offs between
// stages. Both run the same stage functions, so both compute the same bits; but for one row of
// MiniMax-M3's sparse layers, whose fused kernel has stages of its own (row_*.cuh) that add in the
// same order. That for two to four rows runs the stages of any step, which take and leave words
// there (few_rows.cuh). A run's layers are all sparse or all dense.
#pragma once

#include <cstddef>

#include "backend/cuda/device/attention.cuh"
#include "backend/cuda/device/feed.cuh"
#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/mlp.cuh"
#if MONOLAYER_KERNELS_ROWS == 1 && !MONOLAYER_KERNELS_DENSE
#include "backend/cuda/device/row_attention.cuh"
#include "backend/cuda/device/row_mlp.cuh"
#endif

namespace monolayer::cuda::MONOLAYER_KERNELS {

inline constexpr unsigned kFusedStages = 1U << kQkv | 1U << kHeads | 1U << kAttend | 1U << kMerge |
                                         1U << kOutput | 1U << kRouter | 1U << kGateUp |
                                         1U << kDown;

__device__ __forceinline__ void copy_layer(const Layer* layers, int l, Layer& to, int first,
                                           int count) {
#pragma unroll 1
  for (int i = first; i < static_cast<int>(sizeof(Layer) / 8); i += count) {
    reinterpret_cast<std::uint64_t*>(&to)[i] =
        __ldg(reinterpret_cast<const unsigned long long*>(layers + l) + i);
  }
}

template <unsigned STAGES>
__device__ __forceinline__ void feed_weights(const Params& p, Shared& s) {
  constexpr auto has = [](Stage stage) { return (STAGES >> stage & 1U) != 0; };
  const int lane = static_cast<int>(threadIdx.x) & 31;
  Feed feed;
  Layer& layer = s.feed_layers[feeder()];
  const int rows = rows_of(s.step);
  constexpr bool kFused = (STAGES & (STAGES - 1)) != 0;
  constexpr bool kByPart = kFused && kNormsByPart;
  constexpr bool kQkvParts = kFused && kQkvByPart;
#pragma unroll 1
  for (int l = p.first_layer; l < p.last_layer; ++l) {
    __syncwarp();
    copy_layer(p.layers, l, layer, lane, 32);
    __syncwarp();
    if (!feed.alive) break;
    if (has(kQkv)) feed_items(feed, layer.qkv, kQkvParts, kQkvParts && kMayBeWide, rows);
    if (has(kOutput)) feed_share(feed, layer.o, output_is_wide(layer.o, rows), rows);
    if (has(kRouter) && has_experts(layer)) feed_items(feed, layer.router, kByPart, false, rows);
    const int shared_passes = layer.shared_gate_up.row_groups > 0 ? passes(rows) : 0;
    if (has(kGateUp)) {
      if (is_by_halves(rows)) {
        feed_halves(feed, layer.shared_gate_up);
      } else {
        feed_gate_up(feed, layer.shared_gate_up, 0, shared_passes, 0, rows, 0);
      }
    }
    if (has(kDown) && !has_experts(layer))
      feed_share(feed, layer.shared_down, output_is_wide(layer.shared_down, rows), rows);
    if ((has(kGateUp) || has(kDown)) && has_experts(layer)) wait_routed(feed);
    if (has(kGateUp) && has_experts(layer) && feed.alive) {
      feed_gate_up(feed, layer.gate_up, shared_passes, s.table.passes,
                   layer.shared_gate_up.row_groups, rows, layer.gate_up_stride);
    }
    if (has(kDown) && has_experts(layer) && feed.alive)
      feed_down<kM3 && kOneRow && kFused>(feed, layer);
    __syncwarp();
    if (lane == 0) s.fed_layers[feeder()] = l + 1 - p.first_layer;
  }
  if (has(kHead)) {
    if (is_by_halves(s.step.logit_rows)) {
      feed_halves(feed, p.lm_head);
    } else {
      feed_share(feed, p.lm_head, false, s.step.logit_rows);
    }
  }
  drain();
}

// Of several ranks in one launch: which one this block belongs to.
__device__ __forceinline__ int rank_of_launch(const Params& argument) {
  return argument.rank_params != nullptr ? static_cast<int>(blockIdx.x) / argument.rank_blocks : 0;
}
// This rank's parameters into shared memory: all but those of the launch come from its own.
__device__ __forceinline__ void copy_params(const Params& argument, int rank, Params& to) {
  constexpr int kBegin = offsetof(Params, first_layer) / 4;
  constexpr int kEnd = offsetof(Params, barrier) / 4;
  const auto* own = reinterpret_cast<const std::uint32_t*>(argument.rank_params + rank);
  const auto* all = reinterpret_cast<const std::uint32_t*>(&argument);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(Params) / 4);
       i += kBlockThreads) {
    const bool mine = argument.rank_params != nullptr && (i < kBegin || i >= kEnd);
    reinterpret_cast<std::uint32_t*>(&to)[i] = mine ? __ldg(own + i) : all[i];
  }
}

#ifndef STAGE_INLINE
#define STAGE_INLINE __noinline__
#endif
template <typename F>
__device__ __forceinline__ void change_state(F&& change) {
  change(shared().states[threadIdx.x / 32]);
  __syncwarp();
}
template <void (*STAGE)(Context&)>
__device__ STAGE_INLINE void run() {
  Context c = open_context(own_state());
  STAGE(c);
  change_state([&](State& state) { state = c; });
}
// A stage before what it reads is there, by blocks that would wait: so that its code is near when
// it counts. Nobody reads what it stores, which is stored again.
template <void (*STAGE)(Context&)>
__device__ __forceinline__ void rehearse() {
  change_state([](State& state) { state.rehearsal = true; });
  run<STAGE>();
  change_state([](State& state) { state.rehearsal = false; });
}
#if MONOLAYER_KERNELS_ROWS == 1 && !MONOLAYER_KERNELS_DENSE
// One sparse layer of the fused kernel for one row, whose stages wait for words; false once the
// block gave up. A stage that did computes with anything until the end of the layer.
__device__ __forceinline__ bool fused_layer(int l) {
  const Params& p = shared().params;
  const int block = block_of_rank();
  change_state([&](State& state) { state.layers_done = l - p.first_layer; });
  run<row_qkv_stage>();
  mark_end(l, kQkv);
  run<row_heads_stage>();
  const bool counted = shared().step.score != 0 && !scores_are_words(shared().step);
  if (counted) {
    arrive(l, kHeads);
  } else {
    mark_end(l, kHeads);
  }
  const int units = row_plan().units;
  if (block < units) {
    if (counted && !wait_for(l, kHeads, kAttend)) return false;
    run<row_attend_stage>();
    mark_end(l, kAttend);
  }
  const int merging = block - first_to_merge_row();
  if (merging >= 0 && merging < p.shape.heads) {
    run<row_merge_stage>();
    mark_end(l, kMerge);
  }
  run<row_output_stage>();
  mark_end(l, kOutput);
  run<row_router_stage>();
  mark_end(l, kRouter);
#pragma unroll 1
  for (int routed = 0; routed < 2; ++routed) {
    change_state([&](State& state) { state.routed = static_cast<std::int16_t>(routed); });
    run<row_gate_up_half>();
    mark_end(l, routed == 0 ? kShared : kGateUp);
  }
  run<row_down_stage>();
  mark_end(l, kDown);
  // One answer for all warps: one that is ahead may give up in the next layer before another one
  // has looked.
  return !sync_or(shared().abort != 0);
}
#else
// By one warp: the next layer's description, and what it will read.
__device__ __forceinline__ void fetch_next_layer(Context& c) {
  const int next = layer_of(c) + 1;
  if (c.warp != kWarps - 1 || next >= c.p.last_layer) return;
  Layer& layer = c.s.layers[c.layers_done + 1 & 1];
  copy_layer(c.p.layers, next, layer, c.lane, 32);
  __syncwarp();
  prefetch_layer(c, layer);
}
template <bool WORDS>
__device__ __forceinline__ void heads_and_next(Context& c) {
  heads_stage<WORDS>(c);
  fetch_next_layer(c);
}
__device__ __forceinline__ void gate_up_in_step(Context& c) { gate_up_half<true, kFewRows>(c); }

// Gate and up of a layer: the shared expert (or a dense layer's MLP) needs no routing and comes
// first. One copy of the code serves both. False once the block gave up.
__device__ __forceinline__ bool gate_up_of_layer(int l) {
  const int halves = gate_up_halves(shared().layers[l - shared().params.first_layer & 1]);
  if (threadIdx.x == 0) stamp(l, halves == 2 ? kShared : kGateUp, 0);
#pragma unroll 1
  for (int routed = 0; routed < halves; ++routed) {
    if (routed != 0) {
      if (shared().params.stamps != nullptr) {
        sync();
        if (threadIdx.x == 0) stamp(l, kShared, 1);
      }
      if constexpr (kM3) {
        if (sync_or(shared().abort != 0)) return false;  // the table is there
        if (threadIdx.x == 0) stamp(l, kGateUp, 0);
      } else {
        if (!wait_for(l, kRouter, kGateUp)) return false;
      }
    }
    change_state([&](State& state) { state.routed = static_cast<std::int16_t>(routed); });
    run<gate_up_in_step>();
  }
  return true;
}

// One sparse layer of the fused kernel for two to four rows of MiniMax-M3, whose stages wait for
// words but for attention and the choice of experts; false once the block gave up.
__device__ __forceinline__ bool few_rows_layer(int l) {
  const int block = block_of_rank();
  change_state([&](State& state) { state.layers_done = l - shared().params.first_layer; });
  run<qkv_stage<true, false> >();
  mark_end(l, kQkv);
  sync();  // whoever still reads x
  start_keys(open_context(own_state()), 0, kKeyBuffers);
  run<heads_and_next<true> >();
  arrive(l, kHeads);
  if (block < arrivals(kAttend)) {
    if (!wait_for(l, kHeads, kAttend)) return false;
    run<attend_stage>();
    arrive(l, kAttend);
  }
  const int merging = block - first_to_merge(true);
  if (merging >= 0 && merging < arrivals(kMerge)) {
    rehearse<merge_stage<true> >();
    if (!wait_for(l, kAttend, kMerge)) return false;
    run<merge_stage<true> >();
    mark_end(l, kMerge);
  }
  run<output_stage<true> >();
  mark_end(l, kOutput);
  run<router_in_step>();
  if (!gate_up_of_layer(l)) return false;
  mark_end(l, kGateUp);
  run<down_stage<true> >();
  mark_end(l, kDown);
  // One answer for all warps: one that is ahead may give up in the next layer before another one
  // has looked.
  return !sync_or(shared().abort != 0);
}

// One layer of the fused kernel; false once the block gave up. Blocks without work in a
// stage neither wait for what it reads nor arrive.
__device__ __forceinline__ bool fused_layer(int l) {
  if constexpr (kFewRows) return few_rows_layer(l);
  const Params& p = shared().params;
  const int block = block_of_rank();
  change_state([&](State& state) {
    state.layers_done = l - p.first_layer;
    state.normed = kNormsByPart;
  });
  if (kEarlyKeys) start_keys(open_context(own_state()), 0, 1);
  if (!wait_for(l - 1, kDown, kQkv)) return false;
  run<qkv_stage<false, kQkvByPart> >();
  arrive(l, kQkv);
  if (kStagesKeys) start_keys(open_context(own_state()), kEarlyKeys ? 1 : 0, kKeyBuffers);
  if (!wait_for(l, kQkv, kHeads)) return false;
  run<heads_and_next<false> >();
  arrive(l, kHeads);
  if (block < arrivals(kAttend)) {
    if (!wait_for(l, kHeads, kAttend)) return false;
    run<attend_stage>();
    arrive(l, kAttend);
  }
  const int merging = block - first_to_merge(is_sparse(shared().layers[l - p.first_layer & 1]));
  if (merging >= 0 && merging < arrivals(kMerge)) {
    if (!wait_for(l, kAttend, kMerge)) return false;
    run<merge_stage<false> >();
    arrive(l, kMerge);
  }
  if (!wait_for(l, kMerge, kOutput)) return false;
  run<output_stage<false> >();
  arrive(l, kOutput);
  if (!wait_for(l, kOutput, kRouter)) return false;
  const Layer& layer = shared().layers[l - p.first_layer & 1];
  if (has_experts(layer)) {
    run<router_in_step>();
    if (!kM3 && items_of(layer.router, false, block, blocks_of_rank()).units > 0)
      arrive(l, kRouter);
  }
  if (kNormsByPart) route_for_all();
  // Polled by the last warp, as was measured to be faster (docs/performance-tried.md).
  if (kNormsByPart && !wait_for(l, kPostNorm, kShared, kThreads - 32)) return false;
  if (!gate_up_of_layer(l)) return false;
  arrive(l, kGateUp);
  if (!wait_for(l, kGateUp, kDown)) return false;
  run<down_stage<false> >();
  arrive(l, kDown);
  return true;
}
#endif

template <unsigned STAGES>
__global__ void __launch_bounds__(kBlockThreads, 1) chain(const __grid_constant__ Params argument) {
  constexpr auto has = [](Stage stage) { return (STAGES >> stage & 1U) != 0; };
  constexpr bool kFused = (STAGES & (STAGES - 1)) != 0;
  Shared& s = shared();
  const int thread = static_cast<int>(threadIdx.x);
  const Params& p = s.params;
  const int rank = rank_of_launch(argument);
  if (shared_address(named_memory) != kSharedBase) __trap();
  if (thread == 0) {
    s.blocks = argument.rank_params != nullptr ? argument.rank_blocks : static_cast<int>(gridDim.x);
    s.block = static_cast<int>(blockIdx.x) - rank * s.blocks;
    divide_memory(argument.slots, argument.x_bytes);
#pragma unroll 1
    for (int i = 0; i < argument.slots; ++i) {
      mbarrier_init(&s.full[i], 1);
      mbarrier_init(&s.empty[i], 1);
      s.issued[i] = 0;
    }
    mbarrier_init(&s.routed, 1);
    for (int i = 0; i < kFeeders; ++i) s.fed_layers[i] = 0;
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(&s.red_done[i], kWarps);
      mbarrier_init(&s.red_free[i], kWarps);
    }
    mbarrier_fence_init();
    s.abort = 0;
    *reinterpret_cast<uint4*>(s.zero) = {0, 0, 0, 0};
  }
  if (thread == 32) {
    s.rows_divider = divider(max(1, argument.step->rows));
    s.chunks_divider = divider(max(1, argument.step->max_chunks[kDenseM3 ? 0 : 1]));
  }
#pragma unroll 1
  for (int i = thread; i < static_cast<int>(sizeof(StepRows) / 4); i += kBlockThreads) {
    reinterpret_cast<std::uint32_t*>(&s.step)[i] =
        reinterpret_cast<const std::uint32_t*>(static_cast<const StepRows*>(argument.step))[i];
  }
  if (argument.first_layer < argument.last_layer)
    copy_layer(rank > 0 ? argument.rank_params[rank].layers : argument.layers, argument.first_layer,
               s.layers[0], thread, kBlockThreads);
  copy_params(argument, rank, s.params);
  __syncthreads();
  if (has_peers() && !open_mailbox()) return;
  if (thread >= kThreads) {
    feed_weights<STAGES>(p, s);
    return;
  }
  change_state([](State& state) { state = {.staged = -1}; });
  if constexpr (kFused) {
    if (kStagesKeys) plan_heads();
#pragma unroll 1
    for (int l = p.first_layer; l < p.last_layer; ++l) {
      if (!fused_layer(l)) return;
    }
    return;
  }
  Context c = open_context(own_state());
  if (has(kEmbed)) embed_stage(c);
  if (has(kQkv)) qkv_stage<false, false>(c);
  if (has(kHeads)) {
    if (kM3) plan_heads();
    if (kStagesKeys) start_keys(c, 0, kKeyBuffers);
    heads_stage<false>(c);
  }
  if (has(kAttend)) attend_stage(c);
  if (has(kMerge)) merge_stage<false>(c);
  if (has(kOutput)) output_stage<false>(c);
  if (has(kRouter)) router_stage(c);
  if (has(kGateUp)) {
#pragma unroll 1
    for (c.routed = 0; c.routed < gate_up_halves(c.layer()); ++c.routed)
      gate_up_half<false, false>(c);
  }
  if (has(kDown)) {
    if (has_experts(c.layer())) load_table(c);
    down_stage<false>(c);
  }
  if (has(kHead)) head_stage(c);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

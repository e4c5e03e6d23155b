// The kernel: any run of stages over any run of layers. The native chain launches it once per
// stage; the fused path launches it once for all layers, cooperatively, with hand-offs between
// stages. Both run the same stage functions, so both compute the same bits.
#pragma once

#include "backend/cuda/device/attention.cuh"
#include "backend/cuda/device/feed.cuh"
#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/mlp.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

inline constexpr unsigned kFusedStages = 1U << kQkv | 1U << kHeads | 1U << kAttend | 1U << kMerge |
                                         1U << kOutput | 1U << kRouter | 1U << kGateUp |
                                         1U << kDown;

template <unsigned STAGES>
__device__ __forceinline__ void feed_weights(const Params& p, Shared& s) {
  constexpr auto has = [](Stage stage) { return (STAGES >> stage & 1U) != 0; };
  const int lane = static_cast<int>(threadIdx.x) & 31;
  Feed feed;
  const int rows = s.step.rows;
#pragma unroll 1
  for (int l = p.first_layer; l < p.last_layer; ++l) {
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < static_cast<int>(sizeof(Layer) / 8); i += 32) {
      reinterpret_cast<std::uint64_t*>(&s.feed_layer)[i] =
          __ldg(reinterpret_cast<const unsigned long long*>(p.layers + l) + i);
    }
    __syncwarp();
    if (!feed.alive) break;
    const Layer& layer = s.feed_layer;
    if (has(kQkv)) feed_share(feed, layer.qkv, rows);
    if (has(kOutput)) feed_share(feed, layer.o, rows);
    if (has(kRouter) && layer.moe != 0) feed_router(feed, layer.router, rows);
    const int shared_passes = layer.shared_gate_up.row_groups > 0 ? passes(rows) : 0;
    if (has(kGateUp)) feed_gate_up(feed, layer.shared_gate_up, 0, shared_passes, 0, rows, 0);
    if (has(kGateUp) || has(kDown)) wait_routed(feed);
    if (has(kGateUp) && layer.moe != 0 && feed.alive) {
      feed_gate_up(feed, layer.gate_up, shared_passes, s.table.passes,
                   layer.shared_gate_up.row_groups, rows, layer.gate_up_stride);
    }
    if (has(kDown) && feed.alive) feed_down(feed, layer);
  }
  if (has(kHead)) feed_share(feed, p.lm_head, s.step.logit_rows);
  drain(feed);
}

__device__ __forceinline__ void copy_layer(const Params& p, int l, Layer& to, int first,
                                           int count) {
#pragma unroll 1
  for (int i = first; i < static_cast<int>(sizeof(Layer) / 8); i += count) {
    reinterpret_cast<std::uint64_t*>(&to)[i] =
        __ldg(reinterpret_cast<const unsigned long long*>(p.layers + l) + i);
  }
}

// A stage on its own: compiled apart, so that no stage pays for the registers of another.
template <void (*STAGE)(Context&)>
__device__ __noinline__ void run() {
  Context c = open_context();
  STAGE(c);
  close_context(c);
}

// One sparse layer of the fused kernel; false once the block gave up. Blocks without work in a stage
// neither wait for what it reads nor arrive.
__device__ __forceinline__ bool fused_layer(const Params& p, Shared& s, int l, int thread) {
  const int block = static_cast<int>(blockIdx.x);
  if (!wait_for(l - 1, kDown, kQkv)) return false;
  const Layer& layer = s.layers[(l - p.first_layer) & 1];
  run<qkv_stage>();
  arrive(l, kQkv);
  if (!wait_for(l, kQkv, kHeads)) return false;
  run<heads_stage>();
  if (thread / 32 == kWarps - 1 && l + 1 < p.last_layer) {
    copy_layer(p, l + 1, s.layers[(l + 1 - p.first_layer) & 1], thread % 32, 32);
  }
  arrive(l, kHeads);
  if (block < arrivals(kAttend)) {
    if (!wait_for(l, kHeads, kAttend)) return false;
    run<attend_stage>();
    arrive(l, kAttend);
  }
  if (block < arrivals(kMerge)) {
    if (!wait_for(l, kAttend, kMerge)) return false;
    run<merge_stage>();
    arrive(l, kMerge);
  }
  if (!wait_for(l, kMerge, kOutput)) return false;
  run<output_stage>();
  arrive(l, kOutput);
  if (!wait_for(l, kOutput, kRouter)) return false;
  run<router_stage>();
  if (items_of(layer.router, block, static_cast<int>(gridDim.x)).units > 0) arrive(l, kRouter);
  if (thread == 0) stamp(l, kShared, 0);
  shared_stage();
  if (p.stamps != nullptr) {
    sync();
    if (thread == 0) stamp(l, kShared, 1);
  }
  if (!wait_for(l, kRouter, kGateUp)) return false;
  gate_up_stage();
  arrive(l, kGateUp);
  if (!wait_for(l, kGateUp, kDown)) return false;
  run<down_stage>();
  arrive(l, kDown);
  return true;
}

template <unsigned STAGES>
__global__ void __launch_bounds__(kThreads + 32, 1) chain(const __grid_constant__ Params argument) {
  constexpr auto has = [](Stage stage) { return (STAGES >> stage & 1U) != 0; };
  constexpr bool kFused = (STAGES & (STAGES - 1)) != 0;
  Shared& s = shared();
  const int thread = static_cast<int>(threadIdx.x);
  const Params& p = s.params;
  if (thread == 0) {
  #pragma unroll 1
    for (int i = 0; i < argument.slots; ++i) {
      mbarrier_init(&s.full[i], 1);
      mbarrier_init(&s.empty[i], 1);
    }
    mbarrier_init(&s.routed, 1);
    mbarrier_fence_init();
    s.abort = 0;
    *reinterpret_cast<uint4*>(s.zero) = {0, 0, 0, 0};
  }
#pragma unroll 1
  for (int i = thread; i < static_cast<int>(sizeof(StepRows) / 4); i += kThreads + 32) {
    reinterpret_cast<std::uint32_t*>(&s.step)[i] =
        reinterpret_cast<const std::uint32_t*>(static_cast<const StepRows*>(argument.step))[i];
  }
  if (thread < kWarps) s.state[thread] = {.staged = -1};
  if (argument.first_layer < argument.last_layer)
    copy_layer(argument, argument.first_layer, s.layers[0], thread, kThreads + 32);
#pragma unroll 1
  for (int i = thread; i < static_cast<int>(sizeof(Params) / 4); i += kThreads + 32) {
    reinterpret_cast<std::uint32_t*>(&s.params)[i] =
        reinterpret_cast<const std::uint32_t*>(&argument)[i];
  }
  __syncthreads();
  if (thread >= kThreads) {
    feed_weights<STAGES>(p, s);
    return;
  }
  if constexpr (kFused) {
#pragma unroll 1
    for (int l = p.first_layer; l < p.last_layer; ++l) {
      if (!fused_layer(p, s, l, thread)) return;
    }
    return;
  }
  if (has(kEmbed)) run<embed_stage>();
  if (has(kQkv)) run<qkv_stage>();
  if (has(kHeads)) run<heads_stage>();
  if (has(kAttend)) run<attend_stage>();
  if (has(kMerge)) run<merge_stage>();
  if (has(kOutput)) run<output_stage>();
  if (has(kRouter)) run<router_stage>();
  if (has(kGateUp)) {
    shared_stage();
    gate_up_stage();
  }
  if (has(kDown)) {
    run<load_table>();
    run<down_stage>();
  }
  if (has(kHead)) run<head_stage>();
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

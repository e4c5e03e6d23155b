// The kernel: any run of stages over any run of layers. The native chain launches it once per
// stage; the fused path launches it once for all layers, cooperatively, with grid-wide hand-offs
// between stages. Both run the same stage functions, so both compute the same bits.
#pragma once

#include "backend/cuda/device/attention.cuh"
#include "backend/cuda/device/mlp.cuh"

namespace monolayer::cuda {

inline constexpr unsigned kFusedStages = 1U << kQkv | 1U << kHeads | 1U << kScore | 1U << kAttend |
                                         1U << kMerge | 1U << kOutput | 1U << kRouter |
                                         1U << kGateUp | 1U << kDown;

template <unsigned STAGES>
__device__ __forceinline__ void feed_weights(const Params& p, Shared& s, unsigned char* ring) {
  constexpr auto has = [](Stage stage) { return (STAGES >> stage & 1U) != 0; };
  const int lane = static_cast<int>(threadIdx.x) & 31;
  Feed feed{p, s, ring, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
  const int rows = s.step.rows;
  for (int l = p.first_layer; l < p.last_layer; ++l) {
    __syncwarp();
    for (int i = lane; i < static_cast<int>(sizeof(Layer) / 8); i += 32) {
      reinterpret_cast<std::uint64_t*>(&s.feed_layer)[i] =
          __ldg(reinterpret_cast<const unsigned long long*>(p.layers + l) + i);
    }
    __syncwarp();
    if (lane != 0 || !feed.alive) continue;
    const Layer& layer = s.feed_layer;
    if (has(kQkv)) feed.share(layer.qkv, rows);
    if (has(kOutput)) feed.share(layer.o, rows);
    if (has(kRouter) && layer.moe != 0) feed.router(layer.router, rows);
    if (has(kGateUp)) feed.gate_up(layer, rows);
    if (has(kDown) && !has(kGateUp)) feed.wait_routed();
    if (has(kDown) && feed.alive) feed.down(layer);
  }
  if (lane == 0) {
    if (has(kHead)) feed.share(p.lm_head, s.step.logit_rows);
    feed.drain();
  }
}

__device__ __forceinline__ void copy_layer(const Params& p, int l, Layer& to, int first,
                                           int count) {
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

// Between two stages of the fused kernel: stamps, and every block waits for all unless `last`.
__device__ __noinline__ bool hand_off(int layer, int stage, bool last) {
  Context c = open_context();
  const auto stamp = [&](int which) {
    if (c.p.stamps == nullptr || c.thread != 0) return;
    c.p.stamps[(((layer - c.p.first_layer) * kStages + stage) * 2 + which) * c.blocks + c.block] =
        static_cast<std::uint32_t>(clock64());
  };
  if (c.p.stamps != nullptr) sync(c);
  stamp(0);
  const bool alive = last || grid_sync(c, layer, stage);
  stamp(1);
  if (stage == kDown) c.current ^= 1;
  close_context(c);
  return alive;
}

template <unsigned STAGES>
__global__ void __launch_bounds__(kThreads + 32, 1) chain(const __grid_constant__ Params argument) {
  constexpr auto has = [](Stage stage) { return (STAGES >> stage & 1U) != 0; };
  constexpr bool kFused = (STAGES & (STAGES - 1)) != 0;
  Shared& s = shared();
  unsigned char* ring = memory + kFixedBytes;
  const int thread = static_cast<int>(threadIdx.x);
  const Params& p = s.params;
  if (thread == 0) {
    for (int i = 0; i < argument.slots; ++i) {
      mbarrier_init(&s.full[i], 1);
      mbarrier_init(&s.empty[i], kWarps);
    }
    mbarrier_init(&s.routed, 1);
    mbarrier_fence_init();
    s.abort = 0;
    *reinterpret_cast<uint4*>(s.zero) = {0, 0, 0, 0};
  }
  for (int i = thread; i < static_cast<int>(sizeof(StepRows) / 4); i += kThreads + 32) {
    reinterpret_cast<std::uint32_t*>(&s.step)[i] =
        reinterpret_cast<const std::uint32_t*>(static_cast<const StepRows*>(argument.step))[i];
  }
  if (thread < kWarps) s.state[thread] = {};
  if (argument.first_layer < argument.last_layer)
    copy_layer(argument, argument.first_layer, s.layers[0], thread, kThreads + 32);
  for (int i = thread; i < static_cast<int>(sizeof(Params) / 4); i += kThreads + 32) {
    reinterpret_cast<std::uint32_t*>(&s.params)[i] =
        reinterpret_cast<const std::uint32_t*>(&argument)[i];
  }
  __syncthreads();
  if (thread >= kThreads) {
    feed_weights<STAGES>(p, s, ring);
    return;
  }
  if (has(kEmbed)) run<embed_stage>();
  for (int l = p.first_layer; l < p.last_layer; ++l) {
    const Layer& layer = s.layers[(l - p.first_layer) & 1];
    // False once the block gave up.
    const auto done = [&](Stage stage) {
      if (!kFused) return true;
      return hand_off(l, stage, stage == kDown && l + 1 == p.last_layer);
    };
    if (has(kQkv)) {
      run<qkv_stage>();
      if (!done(kQkv)) return;
    }
    if (has(kHeads)) {
      run<heads_stage>();
      if (kFused && thread / 32 == kWarps - 1 && l + 1 < p.last_layer) {
        copy_layer(p, l + 1, s.layers[(l + 1 - p.first_layer) & 1], thread % 32, 32);
      }
      if (!done(kHeads)) return;
    }
    if (has(kScore) && s.step.score != 0 && layer.sparse != 0) {
      run<score_stage>();
      if (!done(kScore)) return;
    }
    if (has(kAttend)) {
      run<attend_stage>();
      if (!done(kAttend)) return;
    }
    if (has(kMerge)) {
      run<merge_stage>();
      if (!done(kMerge)) return;
    }
    if (has(kOutput)) {
      run<output_stage>();
      if (!done(kOutput)) return;
    }
    if (has(kRouter) && layer.moe != 0) {
      run<router_stage>();
      if (!done(kRouter)) return;
    }
    if (has(kGateUp)) {
      run<gate_up_stage>();
      if (!done(kGateUp)) return;
    }
    if (has(kDown)) {
      if (!kFused) run<load_table>();
      run<down_stage>();
      if (!done(kDown)) return;
    }
  }
  if (has(kHead)) run<head_stage>();
}

}  // namespace monolayer::cuda

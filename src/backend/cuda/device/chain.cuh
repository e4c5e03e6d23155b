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

template <unsigned STAGES>
__global__ void __launch_bounds__(kThreads + 32, 1) chain(const __grid_constant__ Params p) {
  constexpr auto has = [](Stage stage) { return (STAGES >> stage & 1U) != 0; };
  constexpr bool kFused = (STAGES & (STAGES - 1)) != 0;
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  unsigned char* ring = memory + kFixedBytes;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < p.slots; ++i) {
      mbarrier_init(&s.full[i], 1);
      mbarrier_init(&s.empty[i], kWarps);
    }
    mbarrier_init(&s.routed, 1);
    mbarrier_fence_init();
    s.abort = 0;
  }
  for (int i = thread; i < static_cast<int>(sizeof(Step) / 4); i += kThreads + 32) {
    reinterpret_cast<std::uint32_t*>(&s.step)[i] =
        reinterpret_cast<const std::uint32_t*>(p.step)[i];
  }
  if (p.first_layer < p.last_layer)
    copy_layer(p, p.first_layer, s.layers[0], thread, kThreads + 32);
  __syncthreads();
  if (thread >= kThreads) {
    feed_weights<STAGES>(p, s, ring);
    return;
  }
  Context c{p,
            s,
            ring,
            ring + p.slots * kSlotBytes,
            thread,
            thread / 32,
            thread % 32,
            static_cast<int>(blockIdx.x),
            static_cast<int>(gridDim.x),
            p.slots};
  if (has(kEmbed)) embed_stage(c);
  for (int l = p.first_layer; l < p.last_layer; ++l) {
    const auto done = [&](Stage stage) {
      if (!kFused) return true;
      const auto stamp = [&](int which) {
        if (p.stamps == nullptr || thread != 0) return;
        p.stamps[(((l - p.first_layer) * kStages + stage) * 2 + which) * c.blocks + c.block] =
            static_cast<std::uint32_t>(clock64());
      };
      sync(c);
      stamp(0);
      const bool alive = stage == kDown && l + 1 == p.last_layer ? true : grid_sync(c, l, stage);
      stamp(1);
      return alive;
    };
    if (has(kQkv)) {
      qkv_stage(c);
      if (!done(kQkv)) return;
    }
    if (has(kHeads)) {
      heads_stage(c);
      if (kFused && c.warp == kWarps - 1 && l + 1 < p.last_layer) {
        copy_layer(p, l + 1, s.layers[c.current ^ 1], c.lane, 32);
      }
      if (!done(kHeads)) return;
    }
    if (has(kScore) && s.step.score != 0 && c.layer().sparse != 0) {
      score_stage(c);
      if (!done(kScore)) return;
    }
    if (has(kAttend)) {
      attend_stage(c);
      if (!done(kAttend)) return;
    }
    if (has(kMerge)) {
      merge_stage(c);
      if (!done(kMerge)) return;
    }
    if (has(kOutput)) {
      output_stage(c);
      if (!done(kOutput)) return;
    }
    if (has(kRouter) && c.layer().moe != 0) {
      router_stage(c);
      if (!done(kRouter)) return;
    }
    if (has(kGateUp)) {
      gate_up_stage(c);
      if (!done(kGateUp)) return;
    }
    if (has(kDown)) {
      if (!kFused) load_table(c);
      down_stage(c);
      if (!done(kDown)) return;
    }
    c.current ^= 1;
  }
  if (has(kHead)) head_stage(c);
}

}  // namespace monolayer::cuda

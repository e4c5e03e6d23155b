// Kernels for the layers of MiniMax-M3 as device/known.cuh has them, its sparse or its dense ones,
// for steps of at most MONOLAYER_KERNELS_ROWS rows. Included by one unit for each, which names
// them.
#pragma once

#include "backend/cuda/kernel_set.h"

#include "backend/cuda/device/chain.cuh"

namespace monolayer::cuda {

const KernelSet& MONOLAYER_KERNEL_SET() {
  namespace k = MONOLAYER_KERNELS;
  static const KernelSet kSet = [] {
    KernelSet set{};
    const auto put = [&set](Stage stage, void (*kernel)(Params)) {
      set.stages[stage] = reinterpret_cast<const void*>(kernel);
    };
    put(kQkv, k::chain<1U << kQkv>);
    put(kHeads, k::chain<1U << kHeads>);
    put(kAttend, k::chain<1U << kAttend>);
    put(kMerge, k::chain<1U << kMerge>);
    put(kOutput, k::chain<1U << kOutput>);
#if !MONOLAYER_KERNELS_DENSE
    put(kRouter, k::chain<1U << kRouter>);
#elif MONOLAYER_KERNELS_ROWS > 8
    put(kHead, k::chain<1U << kHead>);  // of more than eight rows, in one pass
#endif
    put(kGateUp, k::chain<1U << kGateUp>);
    put(kDown, k::chain<1U << kDown>);
    set.fused = reinterpret_cast<const void*>(&k::chain<k::kFusedStages>);
    set.fixed_bytes = k::kFixedBytes;
    return set;
  }();
  return kSet;
}

}  // namespace monolayer::cuda

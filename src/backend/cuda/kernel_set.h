// The kernels of one translation unit (device/known.cuh).
#pragma once

#include "backend/cuda/params.h"

namespace monolayer::cuda {

struct KernelSet {
  const void* stages[kStages];  // null: not a launch of its own, or not in this set
  const void* fused;
  int fixed_bytes;  // of shared memory, the same in all sets
};

const KernelSet& any_kernels();
const KernelSet& m3_kernels();

}  // namespace monolayer::cuda

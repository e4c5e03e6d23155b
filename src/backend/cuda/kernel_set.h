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
// For steps of at most so many rows.
const KernelSet& m3_kernels_1();
const KernelSet& m3_kernels_4();
const KernelSet& m3_kernels_8();
const KernelSet& m3_kernels_16();
const KernelSet& m3_dense_kernels_1();
const KernelSet& m3_dense_kernels_4();
const KernelSet& m3_dense_kernels_8();
const KernelSet& m3_dense_kernels_16();

}  // namespace monolayer::cuda

#include "backend/cuda/kernels.h"

#include <algorithm>

#include "backend/cuda/device/chain.cuh"

namespace monolayer::cuda {
namespace {

using Kernel = void (*)(Params);

Kernel stage_kernel(Stage stage) {
  switch (stage) {
    case kEmbed:
      return chain<1U << kEmbed>;
    case kQkv:
      return chain<1U << kQkv>;
    case kHeads:
      return chain<1U << kHeads>;
    case kScore:
      return chain<1U << kScore>;
    case kAttend:
      return chain<1U << kAttend>;
    case kMerge:
      return chain<1U << kMerge>;
    case kOutput:
      return chain<1U << kOutput>;
    case kRouter:
      return chain<1U << kRouter>;
    case kGateUp:
      return chain<1U << kGateUp>;
    case kDown:
      return chain<1U << kDown>;
    default:
      return chain<1U << kHead>;
  }
}

}  // namespace

bool plan_shared_memory(int rows, int row_bytes, int fixed_x_bytes, int limit, Params& params) {
  const int columns = std::min(rows, kColumns);
  params.x_bytes = std::max(columns * row_bytes, fixed_x_bytes);
  params.x_bytes = (params.x_bytes + 127) / 128 * 128;
  params.slots = std::min((limit - kFixedBytes - params.x_bytes) / kSlotBytes, kMaxSlots);
  params.in_flight = std::min(3, params.slots);
  return params.slots >= 2;
}

int shared_memory(const Params& params) {
  return kFixedBytes + params.slots * kSlotBytes + params.x_bytes;
}

cudaError_t prepare_kernels(int shared_limit) {
  for (int stage = 0; stage < kStages; ++stage) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(stage_kernel(static_cast<Stage>(stage))),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
    if (error != cudaSuccess) return error;
  }
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(chain<kFusedStages>),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
}

cudaError_t fused_occupancy(int shared_bytes, int* blocks) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      blocks, reinterpret_cast<const void*>(chain<kFusedStages>), kThreads + 32,
      static_cast<std::size_t>(shared_bytes));
}

cudaError_t launch_stage(Stage stage, const Params& params, int blocks, cudaStream_t stream) {
  Params copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchKernel(reinterpret_cast<const void*>(stage_kernel(stage)),
                          dim3(static_cast<unsigned>(blocks)), dim3(kThreads + 32), arguments,
                          static_cast<std::size_t>(shared_memory(params)), stream);
}

cudaError_t launch_fused(const Params& params, int blocks, cudaStream_t stream) {
  Params copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchCooperativeKernel(
      reinterpret_cast<const void*>(chain<kFusedStages>), dim3(static_cast<unsigned>(blocks)),
      dim3(kThreads + 32), arguments, static_cast<std::size_t>(shared_memory(params)), stream);
}

}  // namespace monolayer::cuda

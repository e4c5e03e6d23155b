#include "backend_cuda/hand_over.h"

#include "backend/cuda/device/ptx.cuh"

namespace monolayer::test {
namespace {

__global__ void hand_over(bool barriers, std::uint32_t rounds, std::uint32_t* wrong) {
  __shared__ std::uint32_t slot[32];
  __shared__ std::uint64_t full, empty;
  const std::uint32_t lane = threadIdx.x & 31;
  const bool fills = threadIdx.x < 32;
  if (threadIdx.x == 0) {
    cuda::mbarrier_init(&full, 1);
    cuda::mbarrier_init(&empty, 1);
    cuda::mbarrier_fence_init();
  }
  __syncthreads();
  for (std::uint32_t round = 0; round < rounds; ++round) {
    if (fills) {
      while (!barriers && !cuda::mbarrier_try(&empty, (round & 1) ^ 1)) {
      }
      slot[lane] = round * 32 + lane;
      __syncwarp();
      if (!barriers && lane == 0) cuda::mbarrier_arrive(&full);
    }
    if (barriers) __syncthreads();
    if (!fills) {
      while (!barriers && !cuda::mbarrier_try(&full, round & 1)) {
      }
      if (slot[lane ^ 1] != round * 32 + (lane ^ 1)) atomicAdd(wrong, 1U);
      __syncwarp();
      if (!barriers && lane == 0) cuda::mbarrier_arrive(&empty);
    }
    if (barriers) __syncthreads();
  }
}

}  // namespace

cudaError_t run_hand_over(bool barriers, std::uint32_t rounds, std::uint32_t* wrong,
                          cudaStream_t stream) {
  hand_over<<<1, 64, 0, stream>>>(barriers, rounds, wrong);
  return cudaGetLastError();
}

}  // namespace monolayer::test

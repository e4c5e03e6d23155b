#include "backend_cuda/peer_litmus.h"

#include "backend/cuda/device/mail.cuh"

namespace monolayer::test {
namespace {

using cuda::acquire_word;
using cuda::load_word;
using cuda::release_word;
using cuda::store_word;

constexpr std::uint64_t kDeadline = 2'000'000'000;

__device__ std::uint64_t timer() {
  std::uint64_t t = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
__device__ std::uint32_t payload(std::uint32_t tag, std::uint32_t thread) {
  return (tag * 2654435761U) ^ (thread * 40503U);
}

// Block 0 writes, block 1 reads.
__global__ void atomicity(std::uint64_t* own, std::uint64_t* peer, std::uint32_t rounds,
                          LitmusResult* result) {
  const std::uint32_t t = threadIdx.x;
  if (blockIdx.x == 0) {
    for (std::uint32_t tag = 1; tag <= rounds; ++tag) {
      store_word(peer + t, static_cast<std::uint64_t>(tag) << 32 | payload(tag, t));
    }
    return;
  }
  std::uint32_t last = 0;
  std::uint64_t start = timer();
  while (last != rounds) {
    const std::uint64_t word = load_word(own + t);
    const auto tag = static_cast<std::uint32_t>(word >> 32);
    if (tag != 0 && static_cast<std::uint32_t>(word) != payload(tag, t))
      atomicAdd(&result->mismatches, 1U);
    if (tag < last) atomicAdd(&result->mismatches, 1U);  // a word never goes back
    if (tag != last) {
      atomicAdd(&result->seen, 1U);
      start = timer();
    } else if (timer() - start > kDeadline) {
      atomicAdd(&result->gave_up, 1U);
      return;
    }
    last = tag;
  }
}

constexpr int kData = 512;  // plain words of a message, one a thread
constexpr int kFlag = 1024;

__global__ void publication(std::uint32_t* own, std::uint32_t* peer, std::uint32_t rounds,
                            LitmusResult* result) {
  __shared__ std::uint32_t dead;
  const std::uint32_t t = threadIdx.x;
  if (t == 0) dead = 0;
  __syncthreads();
  for (std::uint32_t round = 1; round <= rounds; ++round) {
    // The two halves of the data take turns: the peer may still read the other one.
    const std::uint32_t at = (round & 1) * kData + t;
    peer[at] = payload(round, t);
    __syncthreads();
    if (t == 0) {
      release_word(reinterpret_cast<std::uint64_t*>(peer + kFlag), round);
      const std::uint64_t start = timer();
      while (acquire_word(reinterpret_cast<std::uint64_t*>(own + kFlag)) < round) {
        if (timer() - start < kDeadline) continue;
        dead = 1;
        atomicAdd(&result->gave_up, 1U);
        break;
      }
    }
    __syncthreads();
    if (dead != 0) return;
    if (__ldcg(own + at) != payload(round, t)) atomicAdd(&result->mismatches, 1U);
  }
}

__global__ void occupy(std::uint64_t ns) {
  const std::uint64_t start = timer();
  while (timer() - start < ns) {
  }
}

}  // namespace

cudaError_t occupy_multiprocessor(std::uint64_t ns, cudaStream_t stream) {
  int device = 0;
  int bytes = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(occupy, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  occupy<<<1, 32, static_cast<std::size_t>(bytes), stream>>>(ns);
  return cudaGetLastError();
}
cudaError_t run_atomicity(unsigned char* own, unsigned char* peer, std::uint32_t rounds,
                          LitmusResult* result, cudaStream_t stream) {
  atomicity<<<2, kLitmusWords, 0, stream>>>(reinterpret_cast<std::uint64_t*>(own),
                                            reinterpret_cast<std::uint64_t*>(peer), rounds, result);
  return cudaGetLastError();
}
cudaError_t run_publication(unsigned char* own, unsigned char* peer, std::uint32_t rounds,
                            LitmusResult* result, cudaStream_t stream) {
  publication<<<1, kData, 0, stream>>>(reinterpret_cast<std::uint32_t*>(own),
                                       reinterpret_cast<std::uint32_t*>(peer), rounds, result);
  return cudaGetLastError();
}

}  // namespace monolayer::test

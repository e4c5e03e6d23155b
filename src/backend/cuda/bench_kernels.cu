#include "backend/cuda/bench_kernels.h"

#include <algorithm>

namespace monolayer::cuda {
namespace {

__device__ std::uint32_t hash(std::uint64_t x) {
  x ^= x >> 31;
  x *= 0x7fb5d329728ea185ULL;
  x ^= x >> 27;
  x *= 0x81dadef4bc2dd44dULL;
  return static_cast<std::uint32_t>(x >> 32);
}

constexpr std::uint64_t kTileWords = 136;  // of MXFP4: 128 of codes, 8 of scales

__global__ void fill_words(std::uint32_t* out, std::uint64_t words, Fill fill, std::uint64_t seed) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < words;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    std::uint32_t w = hash(seed + i);
    if (fill == Fill::kE4M3) {
      w &= 0xF7F7F7F7U;
    } else if (fill == Fill::kMXFP4) {
      if (i % kTileWords >= 128) w = (w & 0x01010101U) + 0x75757575U;
    } else {
      w = (w & 0x807F807FU) | 0x3C803C80U;
    }
    out[i] = w;
  }
}

__global__ void read_words(const uint4* from, std::uint64_t vectors, std::uint32_t* sink) {
  std::uint32_t sum = 0;
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
  for (; i + 7 * step < vectors; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = __ldcs(from + i + k * step);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

__global__ void wait_for(std::uint64_t ns) {
  std::uint64_t start = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < ns);
}

// Larger keys are larger logits, and among equals lower ids.
__device__ std::uint64_t key_of(float logit, int id) {
  std::uint32_t bits = __float_as_uint(logit == 0.0F ? 0.0F : logit);
  bits = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return std::uint64_t{bits} << 32 | static_cast<std::uint32_t>(~id);
}

__global__ void greedy(const float* logits, int vocab, std::uint64_t* best) {
  const float* row = logits + static_cast<std::int64_t>(blockIdx.y) * vocab;
  std::uint64_t mine = 0;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < vocab;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    const std::uint64_t key = key_of(row[i], i);
    mine = key > mine ? key : mine;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const std::uint64_t other = __shfl_xor_sync(~0U, mine, offset);
    mine = other > mine ? other : mine;
  }
  if (threadIdx.x % 32 == 0)
    atomicMax(reinterpret_cast<unsigned long long*>(best + blockIdx.y), mine);
}

}  // namespace

cudaError_t fill_random(void* out, std::uint64_t bytes, Fill fill, std::uint64_t seed,
                        cudaStream_t stream) {
  fill_words<<<2048, 256, 0, stream>>>(static_cast<std::uint32_t*>(out), bytes / 4, fill, seed);
  return cudaGetLastError();
}

cudaError_t read_stream(const void* from, std::uint64_t bytes, std::uint32_t* sink, int blocks,
                        cudaStream_t stream) {
  read_words<<<static_cast<unsigned>(blocks), 512, 0, stream>>>(static_cast<const uint4*>(from),
                                                                bytes / 16, sink);
  return cudaGetLastError();
}

cudaError_t hold_stream(std::uint64_t ns, cudaStream_t stream) {
  wait_for<<<1, 1, 0, stream>>>(ns);
  return cudaGetLastError();
}

cudaError_t choose_greedy(const float* logits, int rows, int vocab, std::uint64_t* best,
                          cudaStream_t stream) {
  constexpr int kGreedyThreads = 256;
  const int blocks = std::clamp(vocab / (8 * kGreedyThreads), 1, 32);
  greedy<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows)), kGreedyThreads, 0,
           stream>>>(logits, vocab, best);
  return cudaGetLastError();
}

}  // namespace monolayer::cuda

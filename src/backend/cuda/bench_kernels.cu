#include "backend/cuda/bench_kernels.h"

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

}  // namespace monolayer::cuda

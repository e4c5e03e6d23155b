// What the benches of kernels share: their options, memory and devices.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/cuda/device/ptx.cuh"

namespace cuda = monolayer::cuda;

#define CHECK(call)                                                      \
  do {                                                                   \
    const cudaError_t check_error = (call);                              \
    if (check_error != cudaSuccess) {                                    \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(check_error));                     \
      std::exit(1);                                                      \
    }                                                                    \
  } while (false)

namespace bench {

constexpr int kHidden = 6144;
constexpr int kHead = 128;

// `height` rows of `width` vectors of 16 bytes, from memory of this or another device.
__global__ void copy(uint4* to, const uint4* from, std::uint64_t pitch, std::uint64_t width,
                     std::uint64_t height) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < width * height;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    to[i] = from[i / width * pitch + i % width];
  }
}

// Long enough for the host to hand everything to all devices before any of it runs.
__global__ void hold(std::uint64_t ns) {
  const std::uint64_t start = cuda::global_timer();
  while (cuda::global_timer() - start < ns) {
  }
}

struct Options {
  int layers = 0, context = 0, runs = 15, ranks = 2;
  bool stand_in = false;
  std::vector<int> rows{1, 2, 4, 8, 16};
};

// Sequences of up to kShort tokens, 16 of them; longer ones, two of them, have pages of their own.
constexpr int kShort = 131072;
inline int rows_at(int context) { return context <= kShort ? 16 : 2; }
inline int pages_of(int context) { return context / 128 + 1; }
inline int short_pages(int context) { return pages_of(std::min(context, kShort)); }
inline int all_pages(int context) {
  return 16 * short_pages(context) + (context > kShort ? 2 * pages_of(context) : 0);
}

template <typename T>
T* allocate(std::uint64_t count) {
  void* data = nullptr;
  CHECK(cudaMalloc(&data, std::max<std::uint64_t>(count * sizeof(T), 256)));
  return static_cast<T*>(data);
}

int multiprocessors() {
  int count = 0;
  CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}
int device_count() {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count));
  return count;
}

}  // namespace bench

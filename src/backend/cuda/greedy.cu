#include "backend/cuda/greedy.h"

#include <algorithm>

namespace monolayer::cuda {
namespace {

constexpr int kGreedyThreads = 256;

// As cpu::likeliest_key().
__device__ std::uint64_t key_of(float logit, int id) {
  std::uint32_t bits = __float_as_uint(logit == 0.0F ? 0.0F : logit);
  if ((bits & 0x7F800000U) == 0x7F800000U) {
    bits = ~0U;
  } else {
    bits = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  }
  return std::uint64_t{bits} << 32 | static_cast<std::uint32_t>(~id);
}

__global__ void greedy(const Step* step, const float* logits, int vocab, std::uint64_t* best) {
  if (static_cast<int>(blockIdx.y) >= step->logit_rows) return;
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

cudaError_t choose_greedy(const Step* step, const float* logits, int most_rows, int vocab,
                          std::uint64_t* best, cudaStream_t stream) {
  const int blocks = std::clamp(vocab / (8 * kGreedyThreads), 1, 32);
  greedy<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(most_rows)), kGreedyThreads, 0,
           stream>>>(step, logits, vocab, best);
  return cudaGetLastError();
}

}  // namespace monolayer::cuda

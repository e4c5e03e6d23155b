// The choice of a row's blocks among many, alone: by a block of threads over given scores.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace monolayer::test {

struct Choice {
  const float* scores;  // one of sixteen keys each
  int topk, block_size;
  int blocks;      // of the context
  int last_group;  // the newest sixteen keys; scores behind are not read as such
  int init_blocks, local_blocks;
  int warps;          // that choose, 8 or 16; of 8 both halves of a block do
  std::int32_t* ids;  // [16 / warps][topk], ascending
};
// By the kernels for MiniMax-M3, whose topk is 16 and whose blocks have 128 tokens; by those for
// any shape.
cudaError_t run_choice(const Choice& choice, cudaStream_t stream);
cudaError_t run_choice_any(const Choice& choice, cudaStream_t stream);

}  // namespace monolayer::test

// The choice of a row's blocks among many, alone: by a block of threads over given scores.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace monolayer::test {

struct Choice {
  const float* scores;  // one of sixteen keys each, 8 a block
  int blocks;           // of the context
  int last_group;       // the newest sixteen keys; scores behind are not read as such
  int init_blocks, local_blocks;
  int warps;          // that choose, 8 or 16; of 8 both halves of a block do
  std::int32_t* ids;  // [16 / warps][16], ascending
};
cudaError_t run_choice(const Choice& choice, cudaStream_t stream);

}  // namespace monolayer::test

// The way warps of a block hand shared memory over, alone: so that a tool that looks for races can
// be asked whether it follows it.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace monolayer::test {

// One warp fills a slot, another reads it and gives it back, `rounds` times; `wrong` counts values
// that are not the round's. `barriers`: of the block instead of transaction barriers.
cudaError_t run_hand_over(bool barriers, std::uint32_t rounds, std::uint32_t* wrong,
                          cudaStream_t stream);

}  // namespace monolayer::test

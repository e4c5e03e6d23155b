// The likeliest token of every result row of a step, chosen on the device.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "backend/cuda/params.h"

namespace monolayer::cuda {

// Of each of the step's logit rows, at most `most_rows`, of [rows, vocab]: cpu::likeliest_key() of
// the largest logit, the lowest id among equals, or of the first that is no number. Ids count from
// 0 whatever share of the vocabulary this is. `best` [kMaxRows] must be zero.
cudaError_t choose_greedy(const Step* step, const float* logits, int most_rows, int vocab,
                          std::uint64_t* best, cudaStream_t stream);

}  // namespace monolayer::cuda

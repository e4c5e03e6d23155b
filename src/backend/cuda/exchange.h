// The start of a step on the device, for chains with peers.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/params.h"

namespace monolayer::cuda {

// Counts the step and waits until all ranks have begun it; before any other launch of the step.
// Capturable: the count lies in the rank's region. Cooperative.
cudaError_t launch_begin_step(const Params& params, cudaStream_t stream);

}  // namespace monolayer::cuda

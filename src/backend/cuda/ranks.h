// Tensor parallelism inside one process: a rank a device, each driven by a thread of its own; or
// all ranks on the one device there is.
#pragma once

#include <memory>

#include "backend/cuda/native.h"

namespace monolayer::cuda {

// `options.device`, `virtual_ranks` and `group` are chosen here. kUnsupported stating both numbers
// if there are several devices, but fewer than ranks.
Result<std::unique_ptr<cpu::Native>> create_ranks(const m3::ModelConfig& config,
                                                  const m3::ModelWeights& weights, int ranks,
                                                  const NativeOptions& options);

}  // namespace monolayer::cuda

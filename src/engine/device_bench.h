// `bench step` and `bench layer` on a device: full size, random weights made there.
#pragma once

#include <functional>

#include "backend/cuda/bench.h"
#include "core/status.h"

namespace monolayer::engine {

// As cuda::run_bench(); kUnsupported where this build does not have it.
Status bench_device(const cuda::BenchOptions& options,
                    const std::function<void(const cuda::BenchSetup&)>& on_setup,
                    const std::function<void(const cuda::BenchResult&)>& on_result);

}  // namespace monolayer::engine

// `bench step` and `bench layer` with --backend cuda: what is printed.
#pragma once

#include "core/status.h"
#include "engine/device_bench.h"

namespace monolayer::cli {

Status run_device_bench(const cuda::BenchOptions& options, bool json);

}  // namespace monolayer::cli

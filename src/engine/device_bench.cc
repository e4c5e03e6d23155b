#include "engine/device_bench.h"

#include "engine/native_run.h"

namespace monolayer::engine {

#ifdef MONOLAYER_CUDA
Status bench_device(const cuda::BenchOptions& options,
                    const std::function<void(const cuda::BenchSetup&)>& on_setup,
                    const std::function<void(const cuda::BenchResult&)>& on_result) {
  return cuda::run_bench(options, on_setup, on_result);
}
#else
Status bench_device(const cuda::BenchOptions& /*options*/,
                    const std::function<void(const cuda::BenchSetup&)>& /*on_setup*/,
                    const std::function<void(const cuda::BenchResult&)>& /*on_result*/) {
  return check_backend("cuda");
}
#endif

}  // namespace monolayer::engine

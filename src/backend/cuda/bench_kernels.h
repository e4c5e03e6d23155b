// Small kernels for benches and tests: random contents, the attainable stream.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace monolayer::cuda {

enum class Fill : std::uint8_t {
  kE4M3,   // any codes but NaN
  kMXFP4,  // packed tiles, scales about 2^-9
  kBF16,   // about 2^-6, both signs
};

// `bytes`: a multiple of 4. The same seed gives the same bytes.
cudaError_t fill_random(void* out, std::uint64_t bytes, Fill fill, std::uint64_t seed,
                        cudaStream_t stream);
// Reads `bytes` once with plain 16-byte loads; `sink`: a word for each of blocks * 512 threads.
cudaError_t read_stream(const void* from, std::uint64_t bytes, std::uint32_t* sink, int blocks,
                        cudaStream_t stream);
// Keeps the stream busy, so that the host can hand over what comes next before it runs.
cudaError_t hold_stream(std::uint64_t ns, cudaStream_t stream);

}  // namespace monolayer::cuda

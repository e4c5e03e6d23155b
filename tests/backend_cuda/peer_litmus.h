// Litmus tests of the memory that ranks on different devices share.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace monolayer::test {

struct LitmusResult {
  std::uint32_t mismatches;  // a word whose payload is not its tag's; old data behind a new flag
  std::uint32_t gave_up;     // waits that ended by their deadline
  std::uint32_t seen;        // words read while they were being written
};

// Each thread of a warp a word: `rounds` times (f(tag), tag) into the peer's memory, and meanwhile
// the words that come from the peer are read and compared.
inline constexpr int kLitmusBytes = 64 * 1024;
cudaError_t run_atomicity(unsigned char* own, unsigned char* peer, std::uint32_t rounds,
                          LitmusResult* result, cudaStream_t stream);
// Plain words, then a flag, back and forth between two ranks.
cudaError_t run_publication(unsigned char* own, unsigned char* peer, std::uint32_t rounds,
                            LitmusResult* result, cudaStream_t stream);

}  // namespace monolayer::test

// Litmus tests of the memory that ranks on different devices share.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace monolayer::test {

struct LitmusResult {
  std::uint32_t mismatches;  // a word whose payload is not its tag's; old data behind a new flag
  std::uint32_t gave_up;     // waits that ended by their deadline
  std::uint32_t seen;        // reads of a word that was another than at the read before
};

inline constexpr int kLitmusBytes = 64 * 1024;
inline constexpr int kLitmusWords = 128;
// Each thread of a block a word: `rounds` times (f(tag), tag) into the peer's memory, and meanwhile
// the words that come from the peer are read and compared.
cudaError_t run_atomicity(unsigned char* own, unsigned char* peer, std::uint32_t rounds,
                          LitmusResult* result, cudaStream_t stream);
// Plain words, then a flag, back and forth between two ranks.
cudaError_t run_publication(unsigned char* own, unsigned char* peer, std::uint32_t rounds,
                            LitmusResult* result, cudaStream_t stream);

// Takes a whole multiprocessor, shared memory and all, for `ns`.
cudaError_t occupy_multiprocessor(std::uint64_t ns, cudaStream_t stream);

}  // namespace monolayer::test

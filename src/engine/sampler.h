// Picks the next token from a row of logits. Reproducible: the random number of a token depends on
// (seed, position) alone, so neither batching, chunking nor restarts change a sampled text.
#pragma once

#include <cstdint>
#include <span>

#include "core/status.h"

namespace monolayer::engine {

struct SamplingParams {
  double temperature = 0;  // 0: greedy
  double top_p = 1;        // keep the smallest set of best tokens whose probability reaches it
  std::int64_t top_k = 0;  // keep the k best tokens; 0: all
  std::uint64_t seed = 0;
};

// kInvalidArgument naming the parameter and its bound: temperature in [0, 100], top_p in (0, 1],
// top_k >= 0; NaN is never accepted.
Status check_sampling(const SamplingParams& params);

// Uniform in [0, 1), 53 bits, a pure function of its arguments.
double counter_uniform(std::uint64_t seed, std::uint64_t position);

// Index of the largest value, the lowest index among equals. `logits` must not be empty.
std::int32_t greedy_token(std::span<const float> logits);

// The token at `position` (its place in the sequence, counted from 0). Order of the filters:
// temperature, top-k, top-p of what is left. Equal logits rank by ascending id. A non-finite logit
// is kInternal: it would otherwise turn into plausible text.
Result<std::int32_t> sample_token(std::span<const float> logits, const SamplingParams& params,
                                  std::int64_t position);

}  // namespace monolayer::engine

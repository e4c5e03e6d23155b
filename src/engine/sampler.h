// Picks the next token from a row of logits. Reproducible: the random number of a token depends on
// (seed, position) alone, so neither batching, chunking nor restarts change a sampled text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"

namespace monolayer::engine {

struct SamplingParams {
  double temperature = 0;  // 0: greedy
  double top_p = 1;        // keep the smallest set of best tokens whose probability reaches it
  std::int64_t top_k = 0;  // keep the k best tokens; 0: all
  double min_p = 0;        // keep tokens at least this share of the best one's probability
  std::uint64_t seed = 0;
};

struct SamplerCandidate {
  double weight;  // probability, the best token's being 1
  float logit;
  std::int32_t id;
};
// Memory of a thread that samples, kept from token to token; contents mean nothing.
struct SamplerScratch {
  std::vector<SamplerCandidate> candidates;
  std::vector<double> weights;               // of the whole vocabulary
  std::vector<std::int32_t> largest, order;  // of its pieces
};

// kInvalidArgument naming the parameter and its bound: temperature in [0, 100], top_p in (0, 1],
// top_k >= 0, min_p in [0, 1]; NaN is never accepted.
Status check_sampling(const SamplingParams& params);

// Uniform in [0, 1), 53 bits, a pure function of its arguments.
double counter_uniform(std::uint64_t seed, std::uint64_t position);

// Index of the largest value, the lowest index among equals. `logits` must not be empty.
std::int32_t greedy_token(std::span<const float> logits);

// kInternal naming the token, for logits that would otherwise turn into plausible text.
Status check_finite(std::span<const float> logits, std::int64_t position);

// The token at `position` (its place in the sequence, counted from 0). Order of the filters:
// temperature, top-k, top-p of what is left, min-p. Equal logits rank by ascending id. Non-finite
// logits are refused as by check_finite().
Result<std::int32_t> sample_token(std::span<const float> logits, const SamplingParams& params,
                                  std::int64_t position);
// The same for logits that were checked and may since have lost tokens to minus infinity; the first
// one if all have.
std::int32_t sample_finite(std::span<const float> logits, const SamplingParams& params,
                           std::int64_t position, SamplerScratch& scratch);
std::int32_t sample_finite(std::span<const float> logits, const SamplingParams& params,
                           std::int64_t position);

// Natural logarithms of the model's own distribution, whatever the sampling parameters.
struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;
  bool operator==(const TokenLogprob&) const = default;
};
struct Logprobs {
  TokenLogprob chosen;
  std::int64_t rank = 0;          // of the chosen token, 1 for the best
  std::vector<TokenLogprob> top;  // best first; equal logits rank by ascending id
};
Logprobs token_logprobs(std::span<const float> logits, std::int32_t chosen, std::int64_t top,
                        SamplerScratch& scratch);
Logprobs token_logprobs(std::span<const float> logits, std::int32_t chosen, std::int64_t top);

}  // namespace monolayer::engine

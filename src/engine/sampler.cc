#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

namespace monolayer::engine {
namespace {

// SplitMix64's output function: a bijection that spreads every input bit over all output bits.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// exp for x <= 0, from basic operations only: the C library picks another variant per machine, and
// a last-bit difference could flip a sampled token.
double exp_nonpositive(double x) {
  constexpr double kLog2e = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
  if (x < -700) return 0;
  const double n = std::floor(x * kLog2e + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2)/2
  double sum = 1;
  for (int i = 14; i >= 1; --i) sum = 1 + sum * r / i;
  const auto exponent = static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023);
  return sum * std::bit_cast<double>(exponent << 52);
}

struct Candidate {
  double weight;  // unnormalised probability
  float logit;
  std::int32_t id;
};

bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Keeps the best tokens up to probability `top_p` of the candidates' total.
void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  // A heap yields the few tokens needed in order without sorting the whole vocabulary.
  const auto worse = [](const Candidate& a, const Candidate& b) { return better(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), worse);
  auto end = candidates.end();
  double kept = 0;
  while (end != candidates.begin() && kept < top_p * total) {
    std::pop_heap(candidates.begin(), end, worse);
    --end;
    kept += end->weight;
  }
  candidates.erase(candidates.begin(), end);
}

}  // namespace

Status check_sampling(const SamplingParams& params) {
  const auto refuse = [](const char* name, double value, const char* bound) {
    return Status(Code::kInvalidArgument, name,
                  "is " + std::to_string(value) + ", must be " + bound);
  };
  if (!(params.temperature >= 0 && params.temperature <= 100))
    return refuse("temperature", params.temperature, "in [0, 100]");
  if (!(params.top_p > 0 && params.top_p <= 1)) return refuse("top_p", params.top_p, "in (0, 1]");
  if (!(params.min_p >= 0 && params.min_p <= 1)) return refuse("min_p", params.min_p, "in [0, 1]");
  if (params.top_k < 0) return refuse("top_k", static_cast<double>(params.top_k), "at least 0");
  return ok_status();
}

double counter_uniform(std::uint64_t seed, std::uint64_t position) {
  constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15ULL;
  const std::uint64_t bits = mix(mix(seed + kGamma) + (position + 1) * kGamma);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::int32_t greedy_token(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Status check_finite(std::span<const float> logits, std::int64_t position) {
  if (logits.empty()) return {Code::kInvalidArgument, "logits", "are empty"};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i]))
      return {Code::kInternal, "logits",
              "of token " + std::to_string(i) + " at position " + std::to_string(position) +
                  " are not finite"};
  }
  return ok_status();
}

Result<std::int32_t> sample_token(std::span<const float> logits, const SamplingParams& params,
                                  std::int64_t position) {
  ML_RETURN_IF_ERROR(check_finite(logits, position));
  return sample_finite(logits, params, position);
}

std::int32_t sample_finite(std::span<const float> logits, const SamplingParams& params,
                           std::int64_t position) {
  const std::int32_t best = greedy_token(logits);
  if (params.temperature == 0) return best;

  const float top = logits[static_cast<std::size_t>(best)];
  std::vector<Candidate> candidates(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double below = static_cast<double>(logits[i]) - static_cast<double>(top);
    candidates[i] = {exp_nonpositive(below / params.temperature), logits[i],
                     static_cast<std::int32_t>(i)};
  }
  if (params.top_k > 0 && params.top_k < static_cast<std::int64_t>(candidates.size())) {
    std::nth_element(candidates.begin(), candidates.begin() + params.top_k, candidates.end(),
                     better);
    candidates.resize(static_cast<std::size_t>(params.top_k));
  }
  if (params.top_p < 1) keep_top_p(candidates, params.top_p);
  // The best token's weight is 1, so weights are already shares of it.
  if (params.min_p > 0)
    std::erase_if(candidates, [&](const Candidate& c) { return c.weight < params.min_p; });

  // One order whatever the filters left behind, so that equal sets give equal tokens.
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  const double target = counter_uniform(params.seed, static_cast<std::uint64_t>(position)) * total;
  double sum = 0;
  std::int32_t chosen = best;
  for (const Candidate& c : candidates) {
    if (c.weight == 0) continue;
    chosen = c.id;
    sum += c.weight;
    if (sum > target) break;
  }
  return chosen;
}

Logprobs token_logprobs(std::span<const float> logits, std::int32_t chosen, std::int64_t top) {
  const double best = logits[static_cast<std::size_t>(greedy_token(logits))];
  double total = 0;
  for (const float logit : logits) total += exp_nonpositive(static_cast<double>(logit) - best);
  const double log_total = std::log(total) + best;
  const auto logprob = [&](std::int32_t id) {
    const double logit = logits[static_cast<std::size_t>(id)];
    return TokenLogprob{id, static_cast<float>(logit - log_total)};
  };
  const auto ahead = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  Logprobs result;
  result.chosen = logprob(chosen);
  std::vector<std::int32_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  result.rank = 1 + std::count_if(order.begin(), order.end(),
                                  [&](std::int32_t id) { return ahead(id, chosen); });
  const auto count = std::min<std::int64_t>(top, static_cast<std::int64_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), ahead);
  for (std::int64_t i = 0; i < count; ++i)
    result.top.push_back(logprob(order[static_cast<std::size_t>(i)]));
  return result;
}

}  // namespace monolayer::engine

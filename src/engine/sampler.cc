#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/head.h"

namespace monolayer::engine {
namespace {

// SplitMix64's output function: a bijection that spreads every input bit over all output bits.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// exp(x) for x from -705 to 0, from basic operations only: the C library picks another variant per
// machine, and a last-bit difference could flip a sampled token. Without a condition, so that a
// loop over it becomes vector code.
inline double exp_in_range(double x) {
  constexpr double kLog2e = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
  constexpr double kRound = 0x1.8p52;  // added, it leaves a whole number in the low bits
  const double shifted = x * kLog2e + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2)/2
  // Taylor's coefficients up to 1/14!.
  constexpr double kC[] = {1.0,
                           1.0,
                           1.0 / 2,
                           1.0 / 6,
                           1.0 / 24,
                           1.0 / 120,
                           1.0 / 720,
                           1.0 / 5040,
                           1.0 / 40320,
                           1.0 / 362880,
                           1.0 / 3628800,
                           1.0 / 39916800,
                           1.0 / 479001600,
                           1.0 / 6227020800.0,
                           1.0 / 87178291200.0};
  double sum = kC[14];
  sum = sum * r + kC[13];
  sum = sum * r + kC[12];
  sum = sum * r + kC[11];
  sum = sum * r + kC[10];
  sum = sum * r + kC[9];
  sum = sum * r + kC[8];
  sum = sum * r + kC[7];
  sum = sum * r + kC[6];
  sum = sum * r + kC[5];
  sum = sum * r + kC[4];
  sum = sum * r + kC[3];
  sum = sum * r + kC[2];
  sum = sum * r + kC[1];
  sum = sum * r + kC[0];
  const double scale = std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) + 1023) << 52);
  return sum * scale;
}

bool better(const SamplerCandidate& a, const SamplerCandidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Probabilities, the best token's being 1; none for what has less than e^-700, or was banned.
struct Weigher {
  double top, temperature;
  float least;
  Weigher(float best, double t) : top(best), temperature(t) {
    const double bound =
        std::max(top - 700 * t, static_cast<double>(std::numeric_limits<float>::lowest()));
    least = static_cast<float>(bound);
    // Where floats lie far apart for this temperature, the one below is out of exp's range.
    if (static_cast<double>(least) < bound) least = std::nextafter(least, best);
  }
  double unbounded(float logit) const {
    return exp_in_range((static_cast<double>(logit) - top) / temperature);
  }
  double operator()(float logit) const { return logit < least ? 0 : unbounded(logit); }
  // The same of many.
  void all(std::span<const float> logits, std::vector<double>& weights) const {
    weights.resize(logits.size());
    const Weigher one = *this;  // which no weight that is written overlaps
    const float* const in = logits.data();
    double* const out = weights.data();
    const std::size_t n = logits.size();
    for (std::size_t i = 0; i < n; ++i) out[i] = one.unbounded(in[i]);
    for (std::size_t i = 0; i < n; ++i)
      if (in[i] < one.least) out[i] = 0;
  }
};

// Logits as integers in their order, either zero as the other one: whole pieces are compared with
// vector code.
std::int32_t order_of(float logit) {
  const auto bits = std::bit_cast<std::int32_t>(logit + 0.0F);
  return bits ^ (bits >> 31 & 0x7FFFFFFF);
}

constexpr std::size_t kPiece = 256;  // of the vocabulary

std::size_t pieces_of(std::span<const float> logits) {
  return (logits.size() + kPiece - 1) / kPiece;
}
std::span<const float> piece(std::span<const float> logits, std::size_t i) {
  return logits.subspan(i * kPiece, std::min(kPiece, logits.size() - i * kPiece));
}

// The largest logit of every piece.
void find_largest(std::span<const float> logits, std::vector<std::int32_t>& largest) {
  largest.resize(pieces_of(logits));
  for (std::size_t i = 0; i < largest.size(); ++i) {
    std::int32_t best = std::numeric_limits<std::int32_t>::min();
    for (const float logit : piece(logits, i)) best = std::max(best, order_of(logit));
    largest[i] = best;
  }
}

// Tokens from `least` on, in ascending order of ids; their weights are still missing.
void collect(std::span<const float> logits, std::int32_t least, SamplerScratch& s,
             std::vector<SamplerCandidate>& out) {
  out.clear();
  for (std::size_t i = 0; i < s.largest.size(); ++i) {
    if (s.largest[i] < least) continue;
    auto id = static_cast<std::int32_t>(i * kPiece);
    for (const float logit : piece(logits, i)) {
      if (order_of(logit) >= least) out.push_back({0, logit, id});
      ++id;
    }
  }
}

// The k best tokens, best first. Needs s.largest.
void best_tokens(std::span<const float> logits, std::size_t k, SamplerScratch& s,
                 std::vector<SamplerCandidate>& out) {
  std::int32_t least = std::numeric_limits<std::int32_t>::min();
  if (k <= s.largest.size()) {
    // As many pieces as tokens are wanted have one from there on.
    s.order = s.largest;
    const auto kth = s.order.begin() + static_cast<std::ptrdiff_t>(k) - 1;
    std::nth_element(s.order.begin(), kth, s.order.end(), std::greater<>());
    least = *kth;
  }
  collect(logits, least, s, out);
  const std::size_t count = std::min(k, out.size());
  std::partial_sort(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count), out.end(),
                    better);
  out.resize(count);
}

// How many of `candidates`, best first, reach `wanted`; one more than there are if all do not.
std::size_t reach(std::span<const SamplerCandidate> candidates, double wanted) {
  double kept = 0;
  std::size_t count = 0;
  while (kept < wanted) {
    if (count == candidates.size()) return count + 1;
    kept += candidates[count++].weight;
  }
  return count;
}

// The smallest set of best tokens of the whole vocabulary that reaches `top_p`, best first: only
// what is likely enough to be in it gets sorted. Needs s.weights.
void nucleus(std::span<const float> logits, double top_p, SamplerScratch& s,
             std::vector<SamplerCandidate>& out) {
  constexpr int kBins = 64;  // weights from 2^-i on; the last one has all that are smaller
  double total = 0, mass[kBins] = {};
  for (const double weight : s.weights) {
    total += weight;
    const auto exponent = static_cast<int>(std::bit_cast<std::uint64_t>(weight) >> 52);
    mass[std::clamp(1023 - exponent, 0, kBins - 1)] += weight;
  }
  int bins = 0;
  for (double kept = 0; bins < kBins && kept < top_p * total; ++bins) kept += mass[bins];
  while (true) {
    // One bin more than it takes: nobody is left out by the last bit of a weight.
    const double least = bins < kBins ? std::ldexp(1.0, -bins++) : 0;
    out.clear();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (s.weights[i] >= least)
        out.push_back({s.weights[i], logits[i], static_cast<std::int32_t>(i)});
    }
    std::sort(out.begin(), out.end(), better);
    const std::size_t count = reach(out, top_p * total);
    if (count <= out.size() || least == 0) return out.resize(std::min(count, out.size()));
  }
}

// One of `size` tokens by weight, in the order they come in, which is that of ids: equal sets give
// equal tokens. `fallback`: where none has weight.
template <typename Weight>
std::size_t pick(std::size_t size, double uniform, Weight&& weight, std::size_t fallback) {
  double total = 0;
  for (std::size_t i = 0; i < size; ++i) total += weight(i);
  const double target = uniform * total;
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i) {
    if (weight(i) == 0) continue;
    fallback = i;
    sum += weight(i);
    if (sum > target) break;
  }
  return fallback;
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
  std::size_t best_piece = 0;
  std::int32_t best = std::numeric_limits<std::int32_t>::min();
  for (std::size_t i = 0; i < pieces_of(logits); ++i) {
    std::int32_t largest = std::numeric_limits<std::int32_t>::min();
    for (const float logit : piece(logits, i)) largest = std::max(largest, order_of(logit));
    if (largest > best) best_piece = i;
    best = std::max(best, largest);
  }
  const auto in = piece(logits, best_piece);
  const auto at = std::find_if(in.begin(), in.end(), [&](float x) { return order_of(x) == best; });
  return static_cast<std::int32_t>(best_piece * kPiece) +
         static_cast<std::int32_t>(at - in.begin());
}

Status check_finite(std::span<const float> logits, std::int64_t position) {
  if (logits.empty()) return {Code::kInvalidArgument, "logits", "are empty"};
  const std::int64_t bad =
      cpu::first_non_finite(logits, {0, static_cast<std::int64_t>(logits.size())});
  if (bad < 0) return ok_status();
  return {Code::kInternal, "logits",
          "of token " + std::to_string(bad) + " at position " + std::to_string(position) +
              " are not finite"};
}

Result<std::int32_t> sample_token(std::span<const float> logits, const SamplingParams& params,
                                  std::int64_t position) {
  ML_RETURN_IF_ERROR(check_finite(logits, position));
  return sample_finite(logits, params, position);
}

std::int32_t sample_finite(std::span<const float> logits, const SamplingParams& params,
                           std::int64_t position) {
  SamplerScratch scratch;
  return sample_finite(logits, params, position, scratch);
}

std::int32_t sample_finite(std::span<const float> logits, const SamplingParams& params,
                           std::int64_t position, SamplerScratch& scratch) {
  const std::int32_t best = greedy_token(logits);
  if (params.temperature == 0) return best;

  const Weigher weigher(logits[static_cast<std::size_t>(best)], params.temperature);
  const double uniform = counter_uniform(params.seed, static_cast<std::uint64_t>(position));
  std::vector<SamplerCandidate>& candidates = scratch.candidates;
  if (params.top_k > 0 && params.top_k < static_cast<std::int64_t>(logits.size())) {
    find_largest(logits, scratch.largest);
    best_tokens(logits, static_cast<std::size_t>(params.top_k), scratch, candidates);
    double total = 0;
    for (SamplerCandidate& c : candidates) {
      c.weight = weigher(c.logit);
      total += c.weight;
    }
    if (params.top_p < 1)
      candidates.resize(std::min(candidates.size(), reach(candidates, params.top_p * total)));
  } else {
    weigher.all(logits, scratch.weights);
    if (params.top_p == 1) {
      const std::vector<double>& weights = scratch.weights;
      return static_cast<std::int32_t>(pick(
          weights.size(), uniform,
          [&](std::size_t i) { return weights[i] < params.min_p ? 0 : weights[i]; },
          static_cast<std::size_t>(best)));
    }
    nucleus(logits, params.top_p, scratch, candidates);
  }
  // The best token's weight is 1, so weights are already shares of it.
  std::erase_if(candidates, [&](const SamplerCandidate& c) { return c.weight < params.min_p; });
  std::sort(candidates.begin(), candidates.end(),
            [](const SamplerCandidate& a, const SamplerCandidate& b) { return a.id < b.id; });
  if (candidates.empty()) return best;  // nothing but minus infinity
  return candidates[pick(
                        candidates.size(), uniform,
                        [&](std::size_t i) { return candidates[i].weight; }, 0)]
      .id;
}

Logprobs token_logprobs(std::span<const float> logits, std::int32_t chosen, std::int64_t top) {
  SamplerScratch scratch;
  return token_logprobs(logits, chosen, top, scratch);
}

Logprobs token_logprobs(std::span<const float> logits, std::int32_t chosen, std::int64_t top,
                        SamplerScratch& s) {
  const float best = logits[static_cast<std::size_t>(greedy_token(logits))];
  Weigher(best, 1).all(logits, s.weights);
  double total = 0;
  for (const double weight : s.weights) total += weight;
  const double log_total = std::log(total) + static_cast<double>(best);
  const auto logprob = [&](std::int32_t id) {
    const double logit = logits[static_cast<std::size_t>(id)];
    return TokenLogprob{id, static_cast<float>(logit - log_total)};
  };
  Logprobs result;
  result.chosen = logprob(chosen);
  const std::int32_t own = order_of(logits[static_cast<std::size_t>(chosen)]);
  std::int64_t ahead = 0, equal_before = 0;
  for (const float logit : logits) ahead += order_of(logit) > own ? 1 : 0;
  for (const float logit : logits.first(static_cast<std::size_t>(chosen)))
    equal_before += order_of(logit) == own ? 1 : 0;
  result.rank = 1 + ahead + equal_before;
  if (top < 1) return result;
  find_largest(logits, s.largest);
  best_tokens(logits, static_cast<std::size_t>(top), s, s.candidates);
  for (const SamplerCandidate& c : s.candidates) result.top.push_back(logprob(c.id));
  return result;
}

}  // namespace monolayer::engine

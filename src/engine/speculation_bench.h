// One stream with and without guesses: tokens a second and bytes a token.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"
#include "m3/draft.h"

namespace monolayer::engine {

struct SpeculationBenchOptions {
  std::string draft;                        // folder or cached name; unused if all are 0
  std::vector<std::int64_t> guesses{0, 3};  // a step
  std::vector<std::string> prompts;         // user messages
  std::int64_t max_tokens = 128;            // of an answer
  std::int64_t repeats = 3;                 // rounds over all prompts, the counts in turns
  std::string backend = "cpu", path = "auto";
  CacheTypes cache_types;
  int threads = 0, ranks = 1;
};

struct SpeculationBenchResult {
  std::int64_t guesses = 0;
  std::int64_t tokens = 0, steps = 0;  // decoded, of the last round
  double tokens_per_second = 0;        // median over rounds, from first to last token
  double bytes_per_token = 0;          // target and draft, decode only; "cuda" counts none
  double tokens_per_step = 0;
  std::array<double, m3::kMostDrafts> accepted_at{};  // share of steps, by position
};

// Greedy answers one after the other. Every count must give the same tokens: kInternal otherwise.
Result<std::vector<SpeculationBenchResult>> bench_speculation(
    const OpenModel& model, const SpeculationBenchOptions& options);

}  // namespace monolayer::engine

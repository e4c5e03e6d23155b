// What the benches share: a step's sequences over made-up caches, and medians.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "backend/cpu/native.h"
#include "m3/config.h"

namespace monolayer::engine {

inline double bench_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The sequences of one step: every row has pages of its own and `context` tokens in them.
struct BenchBatch {
  std::vector<std::vector<std::int32_t>> tables;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<cpu::StepSequence> sequences;

  BenchBatch(std::int64_t rows, std::int64_t context, std::int64_t new_tokens,
             std::int64_t logit_rows = 1) {
    const std::int64_t pages = (context + new_tokens + m3::kPageTokens - 1) / m3::kPageTokens;
    for (std::int64_t row = 0; row < rows; ++row) {
      auto& table = tables.emplace_back(static_cast<std::size_t>(pages));
      std::iota(table.begin(), table.end(), static_cast<std::int32_t>(row * pages));
      tokens.emplace_back(static_cast<std::size_t>(new_tokens));
    }
    for (std::size_t row = 0; row < tables.size(); ++row) {
      cpu::StepSequence sequence;
      sequence.tokens = tokens[row];
      sequence.start = context;
      sequence.pages = tables[row];
      sequence.logit_rows = logit_rows;
      sequences.push_back(sequence);
    }
  }

  void draw_tokens(std::int64_t vocab, std::uint64_t& state) {
    for (auto& row : tokens)
      for (std::int32_t& token : row) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        token = static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocab));
      }
  }
};

}  // namespace monolayer::engine

// Output projections: eight partial sums, added in a fixed tree, rounded once, into the residual.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/activations.h"
#include "backend/cpu/partition.h"
#include "backend/cpu/split.h"

namespace monolayer::cpu {

// One matrix and the activation rows it multiplies, in the order in which a row's sum takes them.
struct SplitTerm {
  const Matrix* w = nullptr;
  const SplitLayout* layout = nullptr;
  const float* x = nullptr;            // [count, layout->size()]
  std::int64_t count = 0;              // activation rows
  const std::int32_t* rows = nullptr;  // row of the step of each; null: row i
  const float* weights = nullptr;      // acc = fma(weight, dot, acc); null: acc = acc + dot
};

// hidden[r][o] = BF16(hidden + BF16(sum of eighths)) for every row r of the step and o in `out`;
// inside an eighth the terms in their order. `scratch`: split_scratch() floats.
void add_split_products(const StepContext& step, std::span<const SplitTerm> terms, Range out,
                        float* scratch, Traffic& traffic);
std::int64_t split_scratch(const StepContext& step);

}  // namespace monolayer::cpu

// Output projections: a rank's eighths of partial sums, added in a fixed tree, rounded once, into
// the residual.
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

// roots[r * stride + o - out.begin] = root of the rank's eighths, for every row r of the step and o
// in `out`; inside an eighth the terms in their order. `scratch`: split_scratch() floats.
void split_roots(const StepContext& step, std::span<const SplitTerm> terms, Range out, float* roots,
                 std::int64_t stride, float* scratch, Traffic& traffic);
std::int64_t split_scratch(const StepContext& step);

// hidden[r][o] = BF16(hidden + BF16(total)) for every row r of the step and o in `out`, with the
// totals of all ranks laid out as above.
void add_to_stream(const StepContext& step, const float* totals, std::int64_t stride, Range out);

// Both, for a group of one rank.
void add_split_products(const StepContext& step, std::span<const SplitTerm> terms, Range out,
                        float* scratch, Traffic& traffic);

}  // namespace monolayer::cpu

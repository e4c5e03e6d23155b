// The language model head: final norm, logits, and the check that they are numbers.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/activations.h"
#include "backend/cpu/model_view.h"
#include "backend/cpu/partition.h"

namespace monolayer::cpu {

// Collects the normed, permuted rows that want logits, in their order, into `gathered`.
void gather_logit_rows(const StepContext& step, const Matrix& lm_head, Range logit_rows);

// logits[logit row, vocabulary entries `out`].
void head_logits(const StepContext& step, const Matrix& lm_head, Range out, float* logits,
                 Traffic& traffic);

// Index of the first value of [begin, end) that is not finite, or -1.
std::int64_t first_non_finite(std::span<const float> values, Range range);

}  // namespace monolayer::cpu

#include "backend/cpu/head.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/matmul_rows.h"
#include "backend/cpu/row_stages.h"

namespace monolayer::cpu {

void gather_logit_rows(const StepContext& step, const Matrix& lm_head, Range logit_rows) {
  const auto kind = static_cast<std::size_t>(activation_kind(lm_head.format));
  const std::int64_t size = permuted_size(static_cast<int>(kind), lm_head.cols);
  for (std::int64_t i = logit_rows.begin; i < logit_rows.end; ++i) {
    std::copy_n(step.act.rows[kind].data() + step.plan.logit_row(i) * size, size,
                step.act.gathered[kind].data() + i * size);
  }
}

void head_logits(const StepContext& step, const Matrix& lm_head, Range out, float* logits,
                 Traffic& traffic) {
  const int kind = activation_kind(lm_head.format);
  matmul_rows(step.tiles, lm_head, out, step.act.gathered[static_cast<std::size_t>(kind)].data(),
              permuted_size(kind, lm_head.cols), step.plan.logit_rows(), step.row_tile,
              logits + out.begin, lm_head.rows, traffic);
}

std::int64_t first_non_finite(std::span<const float> values, Range range) {
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    if (!std::isfinite(values[static_cast<std::size_t>(i)])) return i;
  }
  return -1;
}

}  // namespace monolayer::cpu

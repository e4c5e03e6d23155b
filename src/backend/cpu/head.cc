#include "backend/cpu/head.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

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

// In pieces without a way out of them, which compilers turn into vector code.
std::int64_t first_non_finite(std::span<const float> values, Range range) {
  constexpr std::int64_t kPiece = 4096;
  constexpr std::uint32_t kExponent = 0x7F800000U;
  for (std::int64_t begin = range.begin; begin < range.end; begin += kPiece) {
    const std::int64_t end = std::min(begin + kPiece, range.end);
    std::uint32_t bad = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(values[static_cast<std::size_t>(i)]);
      bad |= (bits & kExponent) == kExponent ? 1U : 0U;
    }
    for (std::int64_t i = begin; bad != 0 && i < end; ++i)
      if (!std::isfinite(values[static_cast<std::size_t>(i)])) return i;
  }
  return -1;
}

}  // namespace monolayer::cpu

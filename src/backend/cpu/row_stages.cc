#include "backend/cpu/row_stages.h"

#include <cmath>
#include <cstring>

#include "core/dtype.h"

namespace monolayer::cpu {

void embed_rows(const StepContext& step, const Matrix& embed, Range rows) {
  const std::int64_t n = step.config.hidden_size;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const auto* row =
        static_cast<const std::byte*>(embed.data) + step.plan.row(r).token * embed.row_bytes;
    float* out = step.act.hidden.data() + r * n;
    for (std::int64_t i = 0; i < n; ++i) {
      bf16_t bits = 0;
      std::memcpy(&bits, row + i * 2, sizeof bits);
      out[i] = bf16_to_f32(bits);
    }
  }
}

float norm_factor(const Tiles& tiles, const float* x, std::int64_t n, float eps) {
  const float mean = tiles.sum_squares(x, n) / static_cast<float>(n);
  return 1.0F / std::sqrt(mean + eps);
}

void norm_rows(const StepContext& step, NormWeight weight, unsigned kinds, Range rows) {
  const std::int64_t n = step.config.hidden_size;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = step.act.hidden.data() + r * n;
    float* out = step.act.normed.data() + r * n;
    step.tiles.scale_by_norm(x, norm_factor(step.tiles, x, n, step.config.rms_eps), weight, n, out);
    for (int kind = 0; kind < kActivationKinds; ++kind) {
      if ((kinds >> kind & 1U) == 0) continue;
      step.tiles.permute(
          kind_format(kind), out, n,
          step.act.rows[static_cast<std::size_t>(kind)].data() + r * permuted_size(kind, n));
    }
  }
}

}  // namespace monolayer::cpu

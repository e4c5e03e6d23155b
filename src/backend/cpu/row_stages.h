// Stages that work on whole rows: embedding and norm.
#pragma once

#include "backend/cpu/activations.h"
#include "backend/cpu/model_view.h"
#include "backend/cpu/partition.h"

namespace monolayer::cpu {

// hidden = embedding of each row's token.
void embed_rows(const StepContext& step, const Matrix& embed, Range rows);

// normed = BF16(hidden * rsqrt(mean square + eps) * (1 + weight)), and its permuted copies for
// the activation kinds in the bit set `kinds`.
void norm_rows(const StepContext& step, NormWeight weight, unsigned kinds, Range rows);

// The factor 1 / sqrt(mean square + eps) of one vector.
float norm_factor(const Tiles& tiles, const float* x, std::int64_t n, float eps);

// Floats of one permuted row of that kind.
inline std::int64_t permuted_size(int kind, std::int64_t columns) {
  return padded_columns(kind_format(kind), columns);
}

}  // namespace monolayer::cpu

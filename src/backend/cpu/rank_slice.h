// One tensor-parallel rank's share of a model, as views into the whole.
#pragma once

#include "backend/cpu/model_view.h"
#include "m3/config.h"

namespace monolayer::cpu {

// Rows [first, first + count), scales included.
Matrix slice_rows(const Matrix& w, std::int64_t first, std::int64_t count);
// Columns [first, first + count); both whole numbers of 32-column units unless they span the
// matrix.
Matrix slice_columns(const Matrix& w, std::int64_t first, std::int64_t count);

// Query heads and the KV and index heads they read; gate and up rows and down columns of every MLP;
// the o columns of those query heads; a share of the vocabulary in lm_head. Norms, router, index
// key and embedding stay whole.
ModelView slice_model(const ModelView& whole, const m3::ModelConfig& config,
                      const m3::RankShape& shape);

}  // namespace monolayer::cpu

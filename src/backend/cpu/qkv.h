// Projections, head norms, rotary embedding and cache insert of one layer.
#pragma once

#include <array>

#include "backend/cpu/activations.h"
#include "backend/cpu/model_view.h"
#include "backend/cpu/partition.h"
#include "m3/rope.h"

namespace monolayer::cpu {

// Columns of the projected buffer: q | k | v, then index q | index k on sparse layers.
struct QkvColumns {
  std::int64_t q = 0, k = 0, v = 0, index_q = 0, index_k = 0, size = 0;
  QkvColumns(const m3::ModelConfig& config, bool sparse);
};

// The projections as one list of output rows with their bytes; items in the order of QkvColumns.
WorkList qkv_work(const LayerView& layer);
// Activation kinds the projections read.
unsigned qkv_kinds(const LayerView& layer);

// projected[:, columns of matrix `item`, outputs `out`] for all rows of the step.
void project_qkv(const StepContext& step, const LayerView& layer, std::int64_t item, Range out,
                 Traffic& traffic);

// Cosines and sines of each row's position.
void fill_rope(const StepContext& step, const m3::Rope& rope, Range rows);

// Heads of a row in the order q, k, v, index q, index k: what the next stage counts in.
std::int64_t heads_of_row(const m3::ModelConfig& config, bool sparse);

// Norm, rotation and the one rounding of heads [begin, end), counted as row * heads_of_row + head:
// queries go permuted into `q` and `index_q`, keys and values into the caches. `scratch` holds
// head_dim or index_dim floats, whichever is larger.
void finish_heads(const StepContext& step, const LayerView& layer, std::int64_t layer_index,
                  Range heads, float* scratch, Traffic& traffic);

}  // namespace monolayer::cpu

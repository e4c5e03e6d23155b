// A weight matrix times any number of activation rows, reading each weight once from memory.
#pragma once

#include <cstdint>

#include "backend/cpu/activations.h"
#include "backend/cpu/partition.h"
#include "backend/cpu/tiles.h"

namespace monolayer::cpu {

// Weight rows that stay in a core's cache while the activation tiles pass.
inline constexpr std::int64_t kOutBlock = 32;
// The same in a step of one row: tiles may lay its activation out anew in every call.
inline constexpr std::int64_t kOutBlockOfRow = 1024;

// y[r * y_stride + o - out.begin] = dot(w[o], x_r) over all columns, o in out, r in [0, rows).
void matmul_rows(const Tiles& tiles, const Matrix& w, Range out, const float* xp,
                 std::int64_t x_stride, std::int64_t rows, std::int64_t row_tile, float* y,
                 std::int64_t y_stride, Traffic& traffic);

}  // namespace monolayer::cpu

#include "backend/cpu/matmul_rows.h"

#include <algorithm>

namespace monolayer::cpu {

void matmul_rows(const Tiles& tiles, const Matrix& w, Range out, const float* xp,
                 std::int64_t x_stride, std::int64_t rows, std::int64_t row_tile, float* y,
                 std::int64_t y_stride, Traffic& traffic) {
  if (out.empty()) return;
  traffic.weights += out.size() * stored_row_bytes(w);
  if (rows <= row_tile) {
    tiles.matmul(w, out.begin, out.end, 0, w.cols, xp, x_stride, rows, y, y_stride);
    return;
  }
  for (std::int64_t o = out.begin; o < out.end; o += kOutBlock) {
    const std::int64_t o_end = std::min(out.end, o + kOutBlock);
    for (std::int64_t r = 0; r < rows; r += row_tile) {
      tiles.matmul(w, o, o_end, 0, w.cols, xp + r * x_stride, x_stride,
                   std::min(row_tile, rows - r), y + r * y_stride + (o - out.begin), y_stride);
    }
  }
}

}  // namespace monolayer::cpu

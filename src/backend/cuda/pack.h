// Repacking of stored matrices into the kernels' layout, version 4.
//
// Rows in groups of 16, K in `parts` (the fixed eighths, or as many as one rank holds) at whole
// units of 32 columns, each part padded to whole tiles; a tile is what one warp takes with one or
// two 16-byte loads a lane. Inside a row group: part, tile. Lane l of a tile holds
// rows l / 4 and l / 4 + 8, columns 8 (l % 4) up to 8 (l % 4) + 7 of each 32, in the bit order that
// device/decode.cuh undoes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/cuda/params.h"
#include "checkpoint/quantized_tensor.h"
#include "core/status.h"

namespace monolayer::cuda {

inline constexpr int kLayoutVersion = 4;

// A stored row; null data: zeros (padding to whole row groups).
struct StoredRow {
  const std::byte* data = nullptr;
  const std::uint8_t* scales = nullptr;  // MXFP4, MXFP8
};

// The kernels' format of a stored one. kUnsupported naming the tensor.
Result<Format> pack_format(const QuantizedMatrix& matrix);

// Matrix::x_scale for activations of at most `bound` in magnitude; 0 if FP16 does not suit them.
float half_scale(float bound);
// An E4M3 matrix whose activations are at most `bound` takes them as FP16, if half_scale() says so;
// any other stays as it is.
void stage_as_half(float bound, Matrix& m);
// The largest magnitude of an MLP's activation, g * sigmoid(alpha * g) * (u + beta) with both
// clamped (docs/numerics.md): alpha > 0 bounds it below. Infinite if nothing does.
float activation_bound(float alpha, float limit, float beta);

// Sizes of a packed matrix of `rows` x `cols`; the pointers stay null.
Matrix describe(Format format, std::int64_t rows, std::int64_t cols, int parts);
// Bytes of a packed matrix.
inline std::int64_t packed_bytes(const Matrix& m) { return m.group_bytes * m.row_groups; }

// Packs 16 * m.row_groups rows given by `row(i)`, all in m.format, into `out`; a large matrix on
// several threads, which all ask for rows.
void pack(const Matrix& m, const std::function<StoredRow(std::int64_t)>& row, unsigned char* out);

}  // namespace monolayer::cuda

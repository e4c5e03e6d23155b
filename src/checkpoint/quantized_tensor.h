// Matrices in their stored format: weight and scales found by module name, checked, and decoded
// exactly.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantization.h"
#include "checkpoint/tensor.h"
#include "core/status.h"

namespace monolayer {

inline constexpr std::int64_t kMxGroup = 32;  // values along a row that share one E8M0 scale

// A matrix [rows, cols] of values, row-major. Borrowed from the checkpoint.
//   format          weight                        scale
//   kPlain          BF16, F32 or F16 [rows, cols] none
//   kMXFP4          U8 [rows, cols/2]             U8 [rows, cols/32], E8M0 bytes
//   kMXFP8          E4M3 [rows, cols]             U8 [rows, cols/32], E8M0 bytes
//   kFP8PerChannel  E4M3 [rows, cols]             F32 [rows]
// MXFP4: byte k of a row holds element 2k in its low nibble, 2k + 1 in its high nibble.
// Stacked tensors [E, rows, ...] appear as E * rows rows; slice_rows() takes one out.
struct QuantizedMatrix {
  WeightFormat format = WeightFormat::kPlain;
  std::int64_t rows = 0, cols = 0;
  TensorView weight;
  TensorView scale;  // empty() for kPlain

  bool empty() const { return weight.empty(); }
};

// A plain matrix of a tensor of rank 2 or more (leading axes become rows).
Result<QuantizedMatrix> plain_matrix(const TensorView& tensor);

enum class ValueCheck : std::uint8_t {
  kNone,    // shapes and dtypes only; reads no tensor data
  kScales,  // and every scale
  kAll,     // and every weight value
};

// The matrix of `module`: weight in "<module>.weight" (or "<module>" itself), scales in the first
// of "<module>.weight_scale", ".weight_scale_inv", ".scale" (or "<module>_scale", "_scale_inv").
// The format is what the stored dtypes say and must be one that `config` allows.
// Errors: kNotFound no weight; kInvalidFile for a missing scale, a dtype, shape or format that
// disagrees (naming both), an E8M0 scale of 0xFF, a non-finite or negative float32 scale, a NaN or
// infinite weight, a value too large for float32 (naming tensor and index); kUnsupported for a
// scheme this build does not read.
Result<QuantizedMatrix> find_matrix(const Checkpoint& checkpoint, const QuantizationConfig& config,
                                    std::string_view module, ValueCheck check = ValueCheck::kAll);

// The same for a matrix packed from several modules, which `config` may name instead: its format
// must be allowed for all `parts`, or for `module` while the parts are configured alike.
Result<QuantizedMatrix> find_matrix(const Checkpoint& checkpoint, const QuantizationConfig& config,
                                    std::string_view module, std::span<const std::string> parts,
                                    ValueCheck check);

// kInvalidFile naming the tensor unless the matrix is [rows, cols].
Status expect_matrix(const QuantizedMatrix& matrix, std::int64_t rows, std::int64_t cols);

// The value checks of find_matrix on their own, for callers that spread them over threads.
Status check_values(const QuantizedMatrix& matrix, ValueCheck check = ValueCheck::kAll);

// Rows [begin, end) with their scales. kInvalidArgument outside the matrix.
Result<QuantizedMatrix> slice_rows(const QuantizedMatrix& matrix, std::int64_t begin,
                                   std::int64_t end);

// Decodes rows [begin, end) to out[(end - begin) * cols]: exact for kPlain and MX formats, one
// rounding (value times row scale) for kFP8PerChannel. The range must lie inside the matrix.
void dequantize(const QuantizedMatrix& matrix, std::int64_t begin, std::int64_t end, float* out);

}  // namespace monolayer

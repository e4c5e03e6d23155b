#include "checkpoint/quantized_tensor.h"

#include <initializer_list>

#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

Status refuse(const TensorView& tensor, const std::string& message) {
  return {Code::kInvalidFile, std::string(tensor.file),
          "tensor " + quote_name(tensor.name) + " " + message};
}

bool is_plain(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF16;
}

std::string describe(const TensorView& tensor) {
  return std::string(dtype_name(tensor.dtype)) + " " + tensor.shape.to_string();
}

// Rows and row length of a tensor whose leading axes all count as rows.
struct Extent {
  std::int64_t rows = 0, cols = 0;
};
Result<Extent> extent_of(const TensorView& tensor) {
  if (tensor.shape.rank() < 2)
    return refuse(tensor, "has shape " + tensor.shape.to_string() + ", expected a matrix");
  Extent extent{1, tensor.shape[tensor.shape.rank() - 1]};
  for (int axis = 0; axis + 1 < tensor.shape.rank(); ++axis) {
    if (__builtin_mul_overflow(extent.rows, tensor.shape[axis], &extent.rows))
      return refuse(tensor, "has too many rows");
  }
  return extent;
}

TensorView with_shape(const TensorView& tensor, std::int64_t rows, std::int64_t cols) {
  TensorView view = tensor;
  view.shape = {rows, cols};
  return view;
}

const TensorView* find_weight(const Checkpoint& checkpoint, const std::string& module) {
  const TensorView* weight = checkpoint.find(module + ".weight");
  return weight != nullptr ? weight : checkpoint.find(module);
}

const TensorView* find_scale(const Checkpoint& checkpoint, const std::string& module) {
  for (const char* suffix :
       {".weight_scale", ".weight_scale_inv", ".scale", "_scale", "_scale_inv"}) {
    if (const TensorView* scale = checkpoint.find(module + suffix)) return scale;
  }
  return nullptr;
}

// The same leading axes as the weight and `last` values in the last one.
Status expect_scale_shape(const TensorView& weight, const TensorView& scale, std::int64_t last) {
  Shape expected = weight.shape;
  expected.set(expected.rank() - 1, last);
  return expect_shape(scale, expected);
}

Result<QuantizedMatrix> make_mx(const TensorView& weight, const TensorView& scale,
                                WeightFormat format) {
  ML_ASSIGN_OR_RETURN(const Extent stored, extent_of(weight));
  const std::int64_t per_unit = format == WeightFormat::kMXFP4 ? 2 : 1;
  std::int64_t cols = 0;
  if (__builtin_mul_overflow(stored.cols, per_unit, &cols) || cols % kMxGroup != 0) {
    return refuse(weight, "has rows of " + std::to_string(stored.cols) +
                              " bytes, not a whole number of groups of " +
                              std::to_string(kMxGroup) + " values");
  }
  if (scale.dtype != DType::kU8 && scale.dtype != DType::kE8M0)
    return refuse(scale, "is stored as " + describe(scale) + ", expected E8M0 scales as U8");
  ML_RETURN_IF_ERROR(expect_scale_shape(weight, scale, cols / kMxGroup));
  return QuantizedMatrix{format, stored.rows, cols, with_shape(weight, stored.rows, stored.cols),
                         with_shape(scale, stored.rows, cols / kMxGroup)};
}

Result<QuantizedMatrix> make_fp8(const TensorView& weight, const TensorView& scale) {
  ML_ASSIGN_OR_RETURN(const Extent extent, extent_of(weight));
  Shape per_row = weight.shape;
  per_row.set(per_row.rank() - 1, 1);
  Shape flat_rows;
  for (int axis = 0; axis + 1 < weight.shape.rank(); ++axis)
    flat_rows.push_back(weight.shape[axis]);
  if (!(scale.shape == per_row) && !(scale.shape == flat_rows)) {
    return refuse(scale, "has shape " + scale.shape.to_string() + ", expected one scale a row: " +
                             flat_rows.to_string() + " or " + per_row.to_string());
  }
  TensorView flat = scale;
  flat.shape = {extent.rows};
  return QuantizedMatrix{WeightFormat::kFP8PerChannel, extent.rows, extent.cols,
                         with_shape(weight, extent.rows, extent.cols), flat};
}

}  // namespace

Result<QuantizedMatrix> plain_matrix(const TensorView& tensor) {
  if (!is_plain(tensor.dtype))
    return refuse(tensor, "is stored as " + describe(tensor) + ", expected BF16, F32 or F16");
  ML_ASSIGN_OR_RETURN(const Extent extent, extent_of(tensor));
  return QuantizedMatrix{WeightFormat::kPlain,
                         extent.rows,
                         extent.cols,
                         with_shape(tensor, extent.rows, extent.cols),
                         {}};
}

static Result<QuantizedMatrix> assemble(const Checkpoint& checkpoint, const std::string& module) {
  const TensorView* weight = find_weight(checkpoint, module);
  const TensorView* scale = find_scale(checkpoint, module);
  if (weight == nullptr) {
    return Status(Code::kNotFound, checkpoint.path(),
                  "holds no tensor " + quote_name(module + ".weight"));
  }
  for (const char* suffix : {".weight_scale_2", ".weight_global_scale", ".weight_packed"}) {
    if (checkpoint.find(module + suffix) != nullptr) {
      return Status(Code::kUnsupported, std::string(weight->file),
                    "tensor " + quote_name(module + suffix) +
                        " belongs to NVFP4 or compressed-tensors, which are not supported");
    }
  }
  if (is_plain(weight->dtype)) {
    if (scale != nullptr) {
      return refuse(*weight, "is stored as " + describe(*weight) + " but has a scale " +
                                 quote_name(scale->name));
    }
    return plain_matrix(*weight);
  }
  const bool packed = weight->dtype == DType::kU8;
  if (!packed && weight->dtype != DType::kE4M3) {
    return Status(Code::kUnsupported, std::string(weight->file),
                  "tensor " + quote_name(weight->name) + " is stored as " + describe(*weight) +
                      ", expected BF16, F32, F16, F8_E4M3 or U8 (MXFP4)");
  }
  if (scale == nullptr) {
    return refuse(*weight, "is stored as " + describe(*weight) + " but its scale " +
                               quote_name(module + ".weight_scale") + " is missing");
  }
  if (packed) return make_mx(*weight, *scale, WeightFormat::kMXFP4);
  if (scale->dtype == DType::kF32) return make_fp8(*weight, *scale);
  return make_mx(*weight, *scale, WeightFormat::kMXFP8);
}

// Whether `config` lets a matrix packed from `parts` (or a plain one, without parts) be `format`.
static Result<bool> allows_packed(const QuantizationConfig& config, std::string_view module,
                                  std::span<const std::string> parts, WeightFormat format) {
  bool all_parts = !parts.empty();
  bool alike = true;
  for (const std::string& part : parts) {
    ML_ASSIGN_OR_RETURN(const bool allowed, config.allows(part, format));
    all_parts = all_parts && allowed;
    ML_ASSIGN_OR_RETURN(const WeightFormat first, config.format_for(parts.front()));
    ML_ASSIGN_OR_RETURN(const WeightFormat own, config.format_for(part));
    alike = alike && first == own;
  }
  if (all_parts) return true;
  return alike ? config.allows(module, format) : Result<bool>(false);
}

Result<QuantizedMatrix> find_matrix(const Checkpoint& checkpoint, const QuantizationConfig& config,
                                    std::string_view module, ValueCheck check) {
  return find_matrix(checkpoint, config, module, {}, check);
}

Result<QuantizedMatrix> find_matrix(const Checkpoint& checkpoint, const QuantizationConfig& config,
                                    std::string_view module, std::span<const std::string> parts,
                                    ValueCheck check) {
  ML_ASSIGN_OR_RETURN(QuantizedMatrix matrix, assemble(checkpoint, std::string(module)));
  ML_ASSIGN_OR_RETURN(const bool allowed, allows_packed(config, module, parts, matrix.format));
  if (!allowed) {
    ML_ASSIGN_OR_RETURN(const WeightFormat wanted, config.format_for(module));
    return refuse(matrix.weight,
                  "is stored as " + std::string(format_name(matrix.format)) + " (" +
                      std::string(dtype_name(matrix.weight.dtype)) + "), but " +
                      (config.method().empty() ? "without a quantization_config"
                                               : "quantization_config of " + config.file()) +
                      " says " + std::string(format_name(wanted)) +
                      (parts.empty() ? "" : ", or treats its parts differently"));
  }
  ML_RETURN_IF_ERROR(check_values(matrix, check));
  return matrix;
}

Status expect_matrix(const QuantizedMatrix& matrix, std::int64_t rows, std::int64_t cols) {
  if (matrix.rows == rows && matrix.cols == cols) return ok_status();
  return refuse(matrix.weight, "holds a matrix [" + std::to_string(matrix.rows) + ", " +
                                   std::to_string(matrix.cols) + "], expected [" +
                                   std::to_string(rows) + ", " + std::to_string(cols) + "]");
}

Result<QuantizedMatrix> slice_rows(const QuantizedMatrix& matrix, std::int64_t begin,
                                   std::int64_t end) {
  QuantizedMatrix slice = matrix;
  ML_ASSIGN_OR_RETURN(slice.weight, slice_rows(matrix.weight, begin, end));
  if (!matrix.scale.empty()) {
    ML_ASSIGN_OR_RETURN(slice.scale, slice_rows(matrix.scale, begin, end));
  }
  slice.rows = end - begin;
  return slice;
}

}  // namespace monolayer

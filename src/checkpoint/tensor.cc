#include "checkpoint/tensor.h"

#include "checkpoint/text_io.h"

namespace monolayer {

std::optional<std::int64_t> Shape::elements() const {
  bool zero = false;
  for (const std::int64_t dim : *this) {
    if (dim < 0) return std::nullopt;
    zero = zero || dim == 0;
  }
  if (zero) return 0;
  std::int64_t product = 1;
  for (const std::int64_t dim : *this) {
    if (__builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  }
  return product;
}

Shape Shape::without_first() const {
  Shape rest;
  for (int axis = 1; axis < rank_; ++axis) rest.push_back((*this)[axis]);
  return rest;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int axis = 0; axis < rank_; ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string((*this)[axis]);
  }
  return text + "]";
}

Status expect_dtype(const TensorView& tensor, DType dtype) {
  if (tensor.dtype == dtype) return ok_status();
  return {Code::kInvalidFile, std::string(tensor.file),
          "tensor " + quote_name(tensor.name) + " is stored as " +
              std::string(dtype_name(tensor.dtype)) + ", expected " +
              std::string(dtype_name(dtype))};
}

Status expect_shape(const TensorView& tensor, const Shape& shape) {
  if (tensor.shape == shape) return ok_status();
  return {Code::kInvalidFile, std::string(tensor.file),
          "tensor " + quote_name(tensor.name) + " has shape " + tensor.shape.to_string() +
              ", expected " + shape.to_string()};
}

Result<TensorView> slice_rows(const TensorView& tensor, std::int64_t begin, std::int64_t end) {
  const std::int64_t rows = tensor.shape.rank() == 0 ? 0 : tensor.shape[0];
  if (tensor.shape.rank() == 0 || begin < 0 || begin > end || end > rows) {
    return Status(Code::kInvalidArgument, std::string(tensor.file),
                  "rows " + std::to_string(begin) + " to " + std::to_string(end) + " of tensor " +
                      quote_name(tensor.name) + " of shape " + tensor.shape.to_string());
  }
  TensorView slice = tensor;
  slice.shape.set(0, end - begin);
  // rows > 0 whenever the offset can be: bytes is a whole number of rows by construction.
  const std::size_t row_bytes = rows == 0 ? 0 : tensor.bytes / static_cast<std::size_t>(rows);
  slice.data = tensor.data + row_bytes * static_cast<std::size_t>(begin);
  slice.bytes = row_bytes * static_cast<std::size_t>(end - begin);
  return slice;
}

Result<TensorView> select_first(const TensorView& tensor, std::int64_t index) {
  if (index < 0 || tensor.shape.rank() == 0 || index >= tensor.shape[0]) {
    return Status(Code::kInvalidArgument, std::string(tensor.file),
                  "entry " + std::to_string(index) + " of tensor " + quote_name(tensor.name) +
                      " of shape " + tensor.shape.to_string());
  }
  ML_ASSIGN_OR_RETURN(TensorView slice, slice_rows(tensor, index, index + 1));
  slice.shape = slice.shape.without_first();
  return slice;
}

}  // namespace monolayer

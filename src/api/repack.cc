#include "api/repack.h"

#include <cstring>
#include <string>

#include "api/backends.h"
#include "mono/library_tensor.h"

namespace monolayer::api {
namespace {

using mono::present;
using std::to_string;

// Both tensors of a copy, by themselves: any of the layouts, any type, any shape.
Status check_one(const ml_tensor& tensor, const char* name, const mono::DeviceTraits& traits) {
  mono::TensorRule rule;
  rule.subject = name;
  rule.dtypes = {tensor.dtype};
  switch (tensor.rank) {
    case 1:
      rule.shape = {-1};
      break;
    case 2:
      rule.shape = {-1, -1};
      break;
    case 3:
      rule.shape = {-1, -1, -1};
      break;
    case 4:
      rule.shape = {-1, -1, -1, -1};
      break;
    default:
      return {
          Code::kInvalidArgument, name,
          "rank " + to_string(tensor.rank) + ", must be in [1, " + to_string(ML_MAX_RANK) + "]"};
  }
  if (mono::abi_dtype_size(tensor.dtype) == 0) {
    return {Code::kInvalidArgument, name, "dtype " + to_string(tensor.dtype) + " is unknown"};
  }
  rule.device_index = tensor.device_index;
  rule.alignment = 1;
  rule.role = tensor.layout == ML_LAYOUT_PAGES ? ML_ROLE_CACHE : ML_ROLE_WEIGHT;
  return mono::check_tensor(tensor, traits, rule);
}

// Bytes from the first to past the last element of a checked tensor.
std::int64_t extent(const ml_tensor& tensor) {
  std::int64_t last = 0;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.shape[axis] > 1) last += (tensor.shape[axis] - 1) * tensor.strides[axis];
  }
  return (last + 1) * mono::abi_dtype_size(tensor.dtype);
}

// Of checked tensors of one shape: rows of the last axis, which are contiguous in both.
void copy(const ml_tensor& from, const ml_tensor& to) {
  const std::int64_t unit = mono::abi_dtype_size(from.dtype);
  // Seen as rank 4, with axes of extent 1 in front.
  std::int64_t shape[ML_MAX_RANK] = {1, 1, 1, 1}, in[ML_MAX_RANK] = {}, out[ML_MAX_RANK] = {};
  const int shift = ML_MAX_RANK - from.rank;
  for (int axis = shift; axis < ML_MAX_RANK; ++axis) {
    shape[axis] = from.shape[axis - shift];
    in[axis] = from.strides[axis - shift] * unit;
    out[axis] = to.strides[axis - shift] * unit;
  }
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(to.data);
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    for (std::int64_t j = 0; j < shape[1]; ++j) {
      for (std::int64_t k = 0; k < shape[2]; ++k) {
        std::memcpy(target + i * out[0] + j * out[1] + k * out[2],
                    source + i * in[0] + j * in[1] + k * in[2],
                    static_cast<std::size_t>(shape[3] * unit));
      }
    }
  }
}

Status slice(const ml_tensor& from, const char* name, std::int64_t begin, std::int64_t end,
             int axis, ml_tensor& out) {
  if (from.size != sizeof(ml_tensor) || axis < 0 || axis >= from.rank || from.rank > ML_MAX_RANK) {
    return {Code::kInvalidArgument, name,
            "rank " + to_string(from.rank) + " and size field " + to_string(from.size) +
                " do not name a matrix"};
  }
  if (!present(from)) return {Code::kInvalidArgument, name, "has no data"};
  if (begin < 0 || begin >= end || end > from.shape[axis]) {
    return {Code::kInvalidArgument, name,
            "rows [" + to_string(begin) + ", " + to_string(end) + ") of " +
                to_string(from.shape[axis])};
  }
  std::int64_t skipped = 0;
  if (__builtin_mul_overflow(begin, from.strides[axis], &skipped) ||
      __builtin_mul_overflow(skipped, mono::abi_dtype_size(from.dtype), &skipped)) {
    return {Code::kInvalidArgument, name,
            "row " + to_string(begin) + " with stride " + to_string(from.strides[axis]) +
                " exceeds 2^63 bytes"};
  }
  out = from;
  out.shape[axis] = end - begin;
  out.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(from.data) +
                                     static_cast<std::uintptr_t>(skipped));
  return {};
}

}  // namespace

Status repack(const ml_tensor& from, const ml_tensor& to) {
  const mono::LibraryBackend* backend = find_backend(from.device_type);
  if (backend == nullptr) {
    return {Code::kUnsupported, "from",
            "device " + to_string(from.device_type) + ", this build runs on " + backend_names()};
  }
  ML_RETURN_IF_ERROR(check_one(from, "from", backend->traits()));
  ML_RETURN_IF_ERROR(check_one(to, "to", backend->traits()));
  if (to.dtype != from.dtype || to.device_index != from.device_index) {
    return {Code::kInvalidArgument, "to",
            "dtype " + std::string(mono::abi_dtype_name(to.dtype)) + " on device " +
                to_string(to.device_index) + ", the source has " +
                std::string(mono::abi_dtype_name(from.dtype)) + " on " +
                to_string(from.device_index)};
  }
  const bool same_shape = to.rank == from.rank && mono::shape_text(to) == mono::shape_text(from);
  if (!same_shape) {
    return {Code::kInvalidArgument, "to",
            "shape " + mono::shape_text(to) + ", the source has " + mono::shape_text(from)};
  }
  const auto a = reinterpret_cast<std::uintptr_t>(from.data);
  const auto b = reinterpret_cast<std::uintptr_t>(to.data);
  if (a < b + static_cast<std::uintptr_t>(extent(to)) &&
      b < a + static_cast<std::uintptr_t>(extent(from))) {
    return {Code::kInvalidArgument, "to", "overlaps the source"};
  }
  copy(from, to);
  return {};
}

Status slice_rows(const ml_matrix& from, std::int64_t begin, std::int64_t end, ml_matrix& out) {
  if (from.size != sizeof(ml_matrix)) {
    return {Code::kInvalidArgument, "from",
            "size field is " + to_string(from.size) + ", ml_matrix has " +
                to_string(sizeof(ml_matrix))};
  }
  ml_matrix result = from;
  const int axis = from.weight.rank - 2;  // a stack has one axis more
  ML_RETURN_IF_ERROR(slice(from.weight, "weight", begin, end, axis, result.weight));
  if (present(from.scale)) {
    ML_RETURN_IF_ERROR(slice(from.scale, "scale", begin, end, axis, result.scale));
  }
  out = result;
  return {};
}

}  // namespace monolayer::api

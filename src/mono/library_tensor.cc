#include "mono/library_tensor.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace monolayer::mono {
namespace {

using std::to_string;

std::string dims_text(const std::int64_t* dims, int rank) {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) text += (i == 0 ? "" : ", ") + to_string(dims[i]);
  return text + "]";
}

std::string accepted_text(const Numbers& dtypes) {
  std::string text;
  for (const std::int64_t dtype : dtypes) {
    text += (text.empty() ? "" : " or ") +
            std::string(abi_dtype_name(static_cast<std::int32_t>(dtype)));
  }
  return text;
}

std::string rule_text(const Numbers& shape) {
  std::string text = "[";
  for (const std::int64_t dim : shape) {
    text += (text.size() == 1 ? "" : ", ") + (dim < 0 ? std::string("any") : to_string(dim));
  }
  return text + "]";
}

std::string layout_name(std::int32_t layout) {
  switch (layout) {
    case ML_LAYOUT_ROWS:
      return "rows";
    case ML_LAYOUT_PAGES:
      return "pages";
    default:
      return "tag " + to_string(layout);
  }
}

// Innermost to outermost: each stride at least what the axes inside it span, `packed` axes exactly.
Status check_strides(const ml_tensor& tensor, const TensorRule& rule) {
  const std::int64_t unit = abi_dtype_size(tensor.dtype);
  std::int64_t span = 1;  // units from the first to past the last of the inner axes
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    const std::int64_t extent = tensor.shape[axis], stride = tensor.strides[axis];
    const bool packed = tensor.rank - 1 - axis < rule.packed;
    if (extent == 1 && !packed) continue;
    if (packed ? (extent > 1 && stride != span) : stride < span) {
      return {Code::kInvalidArgument, rule.subject,
              "stride " + to_string(stride) + " of axis " + to_string(axis) + ", " +
                  (packed ? "must be " : "must be at least ") + to_string(span) + " (strides " +
                  dims_text(tensor.strides, tensor.rank) + " of shape " + shape_text(tensor) + ")"};
    }
    const std::int64_t step = extent == 1 ? span : stride;
    if (step > (std::numeric_limits<std::int64_t>::max() / unit - span) / extent) {
      return {Code::kInvalidArgument, rule.subject,
              "shape " + shape_text(tensor) + " with strides " +
                  dims_text(tensor.strides, tensor.rank) + " exceeds 2^63 bytes"};
    }
    span += (extent - 1) * step;
    if (packed) span = extent * step;
  }
  return {};
}

}  // namespace

std::span<const std::int32_t> DeviceTraits::layouts(std::int32_t role) const {
  switch (role) {
    case ML_ROLE_WEIGHT:
      return weight_layouts;
    case ML_ROLE_CACHE:
      return cache_layouts;
    case ML_ROLE_ACTIVATION:
      return activation_layouts;
    default:
      return {};
  }
}

std::string_view abi_dtype_name(std::int32_t dtype) {
  switch (dtype) {
    case ML_F32:
      return "F32";
    case ML_BF16:
      return "BF16";
    case ML_E4M3:
      return "E4M3";
    case ML_E2M1X2:
      return "E2M1x2";
    case ML_E8M0:
      return "E8M0";
    case ML_I32:
      return "I32";
    case ML_I64:
      return "I64";
    default:
      return "an unknown type";
  }
}

std::int64_t abi_dtype_size(std::int32_t dtype) {
  switch (dtype) {
    case ML_F32:
    case ML_I32:
      return 4;
    case ML_I64:
      return 8;
    case ML_BF16:
      return 2;
    case ML_E4M3:
    case ML_E2M1X2:
    case ML_E8M0:
      return 1;
    default:
      return 0;
  }
}

std::string shape_text(const ml_tensor& tensor) {
  return dims_text(tensor.shape, std::clamp(tensor.rank, 0, ML_MAX_RANK));
}

Status check_tensor(const ml_tensor& tensor, const DeviceTraits& device, const TensorRule& rule) {
  const auto bad = [&](const std::string& message) {
    return Status(Code::kInvalidArgument, rule.subject, message);
  };
  if (tensor.size != sizeof(ml_tensor)) {
    return bad("size field is " + to_string(tensor.size) + ", this library's ml_tensor has " +
               to_string(sizeof(ml_tensor)));
  }
  if (!present(tensor)) return bad("missing (data is null)");
  if (tensor.device_type != device.device_type || tensor.device_index != rule.device_index) {
    return bad("on device " + to_string(tensor.device_type) + ":" + to_string(tensor.device_index) +
               ", the rank's device is " + to_string(device.device_type) + ":" +
               to_string(rule.device_index) + " (" + std::string(device.name) + ")");
  }
  const auto layouts = device.layouts(rule.role);
  if (std::find(layouts.begin(), layouts.end(), tensor.layout) == layouts.end()) {
    std::string accepted;
    for (const std::int32_t tag : layouts) {
      accepted += (accepted.empty() ? "" : " or ") + layout_name(tag);
    }
    return bad("layout " + layout_name(tensor.layout) + ", " + std::string(device.name) +
               " accepts " + accepted);
  }
  if (std::find(rule.dtypes.begin(), rule.dtypes.end(), tensor.dtype) == rule.dtypes.end()) {
    return bad("dtype " + std::string(abi_dtype_name(tensor.dtype)) + " (" +
               to_string(tensor.dtype) + "), accepted: " + accepted_text(rule.dtypes));
  }
  if (tensor.rank != rule.shape.size()) {
    return bad("rank " + to_string(tensor.rank) + ", expected shape " + rule_text(rule.shape));
  }
  const std::int64_t* dim = rule.shape.begin();
  for (int axis = 0; axis < tensor.rank; ++axis, ++dim) {
    if (*dim < 0 ? tensor.shape[axis] < 1 : tensor.shape[axis] != *dim) {
      return bad("shape " + shape_text(tensor) + ", expected " + rule_text(rule.shape));
    }
  }
  ML_RETURN_IF_ERROR(check_strides(tensor, rule));
  const std::int64_t alignment = rule.alignment > 0 ? rule.alignment : abi_dtype_size(tensor.dtype);
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(alignment) != 0) {
    return bad("data is not aligned to " + to_string(alignment) + " bytes");
  }
  return {};
}

}  // namespace monolayer::mono

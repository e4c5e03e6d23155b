#include "checkpoint/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "checkpoint/quantized_tensor.h"
#include "checkpoint/text_io.h"
#include "core/dtype.h"

namespace monolayer {
namespace {

Status check_finite(const float* values, std::int64_t rows, std::int64_t cols,
                    std::string_view name) {
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    if (!std::isfinite(values[i])) {
      return {Code::kInvalidArgument, quote_name(name),
              "value at [" + std::to_string(i / cols) + ", " + std::to_string(i % cols) +
                  "] is NaN or infinite"};
    }
  }
  return ok_status();
}

Status check_groups(std::int64_t cols, std::string_view name) {
  if (cols % kMxGroup == 0) return ok_status();
  return {Code::kInvalidArgument, quote_name(name),
          "rows of " + std::to_string(cols) + " values, MX formats need a multiple of " +
              std::to_string(kMxGroup)};
}

float largest_magnitude(const float* values, std::int64_t count) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

// Exponent of the shared scale; `element_max` is that of the element type's largest value.
int shared_exponent(float largest, int element_max, MxRule rule) {
  if (largest == 0) return 0;
  int exponent = std::ilogb(largest);
  // ilogb sees through subnormals, the bit rule does not have to: they clamp to -127 anyway.
  if (rule == MxRule::kEven && largest >= std::numeric_limits<float>::min()) {
    const std::uint32_t rounded = std::bit_cast<std::uint32_t>(largest) + 0x200000U;
    exponent = static_cast<int>(rounded >> 23) - 127;
  }
  // Upwards, at most the scale whose largest element is still a finite float32.
  return std::clamp(exponent - element_max, -127, 127 - element_max);
}

// The value in units of the scale. Exact: either a power of two changes the exponent only, or the
// result is so small that every element type rounds it to zero.
float scaled(float value, int exponent) { return std::ldexp(value, -exponent); }

}  // namespace

Status quantize_mxfp4(const float* values, std::int64_t rows, std::int64_t cols, MxRule rule,
                      std::string_view name, std::uint8_t* weight, std::uint8_t* scale) {
  ML_RETURN_IF_ERROR(check_groups(cols, name));
  ML_RETURN_IF_ERROR(check_finite(values, rows, cols, name));
  for (std::int64_t group = 0; group < rows * (cols / kMxGroup); ++group, values += kMxGroup) {
    const int exponent = shared_exponent(largest_magnitude(values, kMxGroup), 2, rule);
    *scale++ = static_cast<std::uint8_t>(exponent + 127);
    for (std::int64_t i = 0; i < kMxGroup; i += 2) {
      const std::uint8_t low = f32_to_e2m1(scaled(values[i], exponent));
      const std::uint8_t high = f32_to_e2m1(scaled(values[i + 1], exponent));
      *weight++ = static_cast<std::uint8_t>(low | high << 4);
    }
  }
  return ok_status();
}

Status quantize_mxfp8(const float* values, std::int64_t rows, std::int64_t cols, MxRule rule,
                      std::string_view name, std::uint8_t* weight, std::uint8_t* scale) {
  ML_RETURN_IF_ERROR(check_groups(cols, name));
  ML_RETURN_IF_ERROR(check_finite(values, rows, cols, name));
  for (std::int64_t group = 0; group < rows * (cols / kMxGroup); ++group, values += kMxGroup) {
    const int exponent = shared_exponent(largest_magnitude(values, kMxGroup), 8, rule);
    *scale++ = static_cast<std::uint8_t>(exponent + 127);
    for (std::int64_t i = 0; i < kMxGroup; ++i)
      *weight++ = f32_to_e4m3(scaled(values[i], exponent));
  }
  return ok_status();
}

Status quantize_fp8_per_channel(const float* values, std::int64_t rows, std::int64_t cols,
                                std::string_view name, std::uint8_t* weight, float* scale) {
  ML_RETURN_IF_ERROR(check_finite(values, rows, cols, name));
  for (std::int64_t row = 0; row < rows; ++row, values += cols) {
    const float largest = largest_magnitude(values, cols);
    // A subnormal scale would round coarsely or to zero; the smallest normal one still covers the
    // row.
    scale[row] =
        largest == 0 ? 1.0F : std::max(largest / 448.0F, std::numeric_limits<float>::min());
    for (std::int64_t i = 0; i < cols; ++i) *weight++ = f32_to_e4m3(values[i] / scale[row]);
  }
  return ok_status();
}

}  // namespace monolayer

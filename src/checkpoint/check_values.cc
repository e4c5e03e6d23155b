// Scans for stored values that decode to NaN or infinity. Each scan first asks whole blocks the
// cheap question and looks for the exact place only when a block answers yes.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <type_traits>

#include "checkpoint/quantized_tensor.h"
#include "checkpoint/read_guard.h"
#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

// The first index in [0, count) whose element satisfies `bad`; the inner loop has no early exit, so
// that compilers vectorise it.
template <typename T, typename Bad>
std::optional<std::int64_t> first_bad(const T* values, std::int64_t count, Bad bad) {
  constexpr std::int64_t kBlock = 4096;
  // As wide as the elements: no vector lane has to be widened.
  using Flag = std::conditional_t<sizeof(T) == 1, std::uint8_t,
                                  std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    Flag any = 0;
    for (std::int64_t i = begin; i < end; ++i)
      any = static_cast<Flag>(any | static_cast<Flag>(bad(values[i])));
    if (any == 0) continue;
    for (std::int64_t i = begin; i < end; ++i) {
      if (bad(values[i])) return i;
    }
  }
  return std::nullopt;
}

// Runs a scan under the read guard, so that a file cut while it is scanned is an error too.
template <typename T, typename Bad>
Result<std::optional<std::int64_t>> scan(const TensorView& tensor, Bad bad) {
  std::optional<std::int64_t> found;
  const auto count = static_cast<std::int64_t>(tensor.bytes / sizeof(T));
  ML_RETURN_IF_ERROR(guard_reads([&] { found = first_bad(tensor.as<T>(), count, bad); }));
  return found;
}

Status refuse(const TensorView& tensor, std::int64_t index, const std::string& what) {
  const std::int64_t cols = tensor.shape.rank() > 1 ? tensor.shape[1] : 1;
  std::string place = "[";
  place.append(std::to_string(index / cols));
  if (tensor.shape.rank() > 1) place.append(", ").append(std::to_string(index % cols));
  return {Code::kInvalidFile, std::string(tensor.file),
          "tensor " + quote_name(tensor.name) + " at " + place + "] " + what};
}

// Groups whose scale is so large that some elements would decode to infinity.
Status check_mx_range(const QuantizedMatrix& matrix) {
  const bool fp4 = matrix.format == WeightFormat::kMXFP4;
  // Largest exponent byte at which the largest element is still finite: 6 * 2^125, 448 * 2^119.
  const std::uint8_t limit = fp4 ? 252 : 246;
  const auto* scales = matrix.scale.as<std::uint8_t>();
  const std::int64_t group_bytes = fp4 ? kMxGroup / 2 : kMxGroup;
  const auto groups = static_cast<std::int64_t>(matrix.scale.bytes);
  std::array<float, kMxGroup> values{};
  std::int64_t bad = -1;
  ML_RETURN_IF_ERROR(guard_reads([&] {
    std::int64_t group = 0;
    while (bad < 0) {
      const auto next = first_bad(scales + group, groups - group,
                                  [limit](std::uint8_t byte) { return byte > limit; });
      if (!next) return;
      group += *next;
      QuantizedMatrix one{matrix.format, 1, kMxGroup, matrix.weight, matrix.scale};
      one.weight.data += group * group_bytes;
      one.scale.data += group;
      dequantize(one, 0, 1, values.data());
      for (const float value : values) {
        if (std::isinf(value)) bad = group;
      }
      ++group;
    }
  }));
  if (bad < 0) return ok_status();
  return refuse(matrix.scale, bad,
                "is the E8M0 scale " + std::to_string(scales[bad]) +
                    ", with which an element of its group exceeds float32");
}

Status check_scales(const QuantizedMatrix& matrix) {
  if (matrix.format == WeightFormat::kPlain) return ok_status();
  if (matrix.format == WeightFormat::kFP8PerChannel) {
    // Bits from 0x7f800000 up: infinities, NaN and everything with the sign set (but -0).
    ML_ASSIGN_OR_RETURN(const auto bad, scan<std::uint32_t>(matrix.scale, [](std::uint32_t bits) {
                          return bits >= 0x7f800000U && bits != 0x80000000U;
                        }));
    if (!bad) return ok_status();
    return refuse(matrix.scale, *bad,
                  "is " + std::to_string(matrix.scale.as<float>()[*bad]) +
                      ", scales are finite and not negative");
  }
  ML_ASSIGN_OR_RETURN(const auto bad, scan<std::uint8_t>(matrix.scale, [](std::uint8_t byte) {
                        return byte == 0xff;
                      }));
  if (bad) return refuse(matrix.scale, *bad, "is 0xFF, the E8M0 code for NaN");
  return ok_status();
}

Status check_weights(const QuantizedMatrix& matrix) {
  const TensorView& weight = matrix.weight;
  if (matrix.format == WeightFormat::kMXFP4) return check_mx_range(matrix);
  if (matrix.format == WeightFormat::kPlain) {
    Result<std::optional<std::int64_t>> bad = std::optional<std::int64_t>();
    if (weight.dtype == DType::kF32) {
      bad = scan<std::uint32_t>(
          weight, [](std::uint32_t bits) { return (bits & 0x7f800000U) == 0x7f800000U; });
    } else {
      const std::uint16_t mask = weight.dtype == DType::kF16 ? 0x7c00 : 0x7f80;
      bad =
          scan<std::uint16_t>(weight, [mask](std::uint16_t bits) { return (bits & mask) == mask; });
    }
    if (!bad.ok()) return bad.status();
    if (*bad) return refuse(weight, **bad, "is NaN or infinite");
    return ok_status();
  }
  ML_ASSIGN_OR_RETURN(const auto bad, scan<std::uint8_t>(weight, [](std::uint8_t byte) {
                        return (byte & 0x7fU) == 0x7fU;
                      }));
  if (bad) return refuse(weight, *bad, "is an E4M3 NaN");
  if (matrix.format == WeightFormat::kMXFP8) return check_mx_range(matrix);
  // A row scale above this can carry the largest element, 448, past float32.
  constexpr float kLargest = 0x1.fffffep127F / 448.0F;
  ML_ASSIGN_OR_RETURN(const auto huge,
                      scan<float>(matrix.scale, [](float value) { return value > kLargest; }));
  if (huge) return refuse(matrix.scale, *huge, "is too large: 448 times it exceeds float32");
  return ok_status();
}

}  // namespace

Status check_values(const QuantizedMatrix& matrix, ValueCheck check) {
  if (check == ValueCheck::kNone) return ok_status();
  ML_RETURN_IF_ERROR(check_scales(matrix));
  return check == ValueCheck::kAll ? check_weights(matrix) : ok_status();
}

}  // namespace monolayer

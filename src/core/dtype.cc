#include "core/dtype.h"

namespace monolayer {

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kE4M3:
      return "F8_E4M3";
    case DType::kE2M1x2:
      return "F4_E2M1x2";
    case DType::kE8M0:
      return "F8_E8M0";
    case DType::kU8:
      return "U8";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kF64:
      return "F64";
    case DType::kE5M2:
      return "F8_E5M2";
    case DType::kI8:
      return "I8";
    case DType::kBool:
      return "BOOL";
    case DType::kI16:
      return "I16";
    case DType::kU16:
      return "U16";
    case DType::kU32:
      return "U32";
    case DType::kU64:
      return "U64";
  }
  return "?";
}

float f16_to_f32(std::uint16_t bits) {
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 31) {
    const std::uint32_t payload = static_cast<std::uint32_t>(mantissa) << 13;
    return std::bit_cast<float>((static_cast<std::uint32_t>(bits & 0x8000U) << 16) | 0x7f800000U |
                                payload);
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

float e4m3_to_f32(std::uint8_t bits) {
  if ((bits & 0x7fU) == 0x7fU) return std::bit_cast<float>(0x7fc00000U | (bits & 0x80U) << 24);
  const float sign = (bits & 0x80U) != 0 ? -1.0F : 1.0F;
  const int exponent = (bits >> 3) & 0xf;
  const int mantissa = bits & 7;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(mantissa + 8), exponent - 10);
}

std::uint8_t f32_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80U);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7fU);
  if (magnitude >= 448.0F) return static_cast<std::uint8_t>(sign | 0x7eU);
  // Below 2^-6 the step is a constant 2^-9; above, the step follows the exponent.
  if (magnitude < 0x1p-6F) {
    return static_cast<std::uint8_t>(sign | static_cast<unsigned>(std::nearbyint(magnitude * 512)));
  }
  const std::uint32_t abs_bits = bits & 0x7fffffffU;
  const std::uint32_t rounded = abs_bits + 0x7ffffU + ((abs_bits >> 20) & 1U);
  const std::uint32_t code = (rounded >> 20) - (120U << 3);
  return static_cast<std::uint8_t>(sign | (code > 0x7eU ? 0x7eU : code));
}

std::uint8_t f32_to_e2m1(float value) {
  if (std::isnan(value)) return 0;
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 8U : 0U);
  const float magnitude = std::fabs(value);
  // Midpoints between neighbours; a tie goes to the even code.
  std::uint8_t code = 0;
  if (magnitude > 5.0F)
    code = 7;
  else if (magnitude >= 3.5F)
    code = 6;
  else if (magnitude > 2.5F)
    code = 5;
  else if (magnitude >= 1.75F)
    code = 4;
  else if (magnitude > 1.25F)
    code = 3;
  else if (magnitude >= 0.75F)
    code = 2;
  else if (magnitude > 0.25F)
    code = 1;
  return static_cast<std::uint8_t>(sign | code);
}

}  // namespace monolayer

// Element types as they are stored in files and caches, and their exact conversions to float32.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace monolayer {

// Storage types. kE2M1x2 is two OCP E2M1 values in a byte, the even element in the low nibble.
// From kF64 on: types a file may hold that no weight of the model uses.
enum class DType : std::uint8_t {
  kF32,
  kBF16,
  kF16,
  kE4M3,
  kE2M1x2,
  kE8M0,
  kU8,
  kI32,
  kI64,
  kF64,
  kE5M2,
  kI8,
  kBool,
  kI16,
  kU16,
  kU32,
  kU64
};

std::string_view dtype_name(DType dtype);

// Bytes of one stored unit (for kE2M1x2 the unit is the packed byte).
constexpr std::size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64:
      return 8;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    default:
      return 1;
  }
}

using bf16_t = std::uint16_t;  // the upper half of a float32's bits

inline float bf16_to_f32(bf16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Round to nearest, ties to even; NaN stays NaN (quiet), overflow goes to infinity.
inline bf16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<bf16_t>((bits >> 16) | 0x40U);
  return static_cast<bf16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

inline float round_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }

float f16_to_f32(std::uint16_t bits);

// OCP E4M3 (fn): bias 7, largest 448, NaN at 0x7F and 0xFF only, subnormal step 2^-9.
float e4m3_to_f32(std::uint8_t bits);
// Round to nearest even, saturating at +-448 (infinities too); NaN gives 0x7F with the sign kept.
std::uint8_t f32_to_e4m3(float value);

// OCP E2M1: bit 3 is the sign; magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Uses the low nibble only.
inline float e2m1_to_f32(std::uint8_t nibble) {
  constexpr float kMagnitude[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const float magnitude = kMagnitude[nibble & 7U];
  return (nibble & 8U) != 0 ? -magnitude : magnitude;
}
// Round to nearest even, saturating at +-6; NaN gives 0. Returns a nibble.
std::uint8_t f32_to_e2m1(float value);

// OCP E8M0: 2^(bits - 127); 0xFF is NaN. 0 is 2^-127, a float32 subnormal, still exact.
inline float e8m0_to_f32(std::uint8_t bits) {
  if (bits == 0xff) return std::bit_cast<float>(0x7fc00000U);
  if (bits == 0) return std::bit_cast<float>(0x00400000U);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 23);
}

}  // namespace monolayer

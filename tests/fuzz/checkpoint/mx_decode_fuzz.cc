// Arbitrary stored bytes in every quantised format against a decoder written from the formats'
// definitions in double, and the value checks against a plain loop.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../fuzz_check.h"
#include "checkpoint/quantized_tensor.h"

namespace {

using monolayer::DType;
using monolayer::QuantizedMatrix;
using monolayer::WeightFormat;

double e2m1(unsigned nibble) {
  constexpr double kMagnitude[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (nibble & 8U) != 0 ? -kMagnitude[nibble & 7U] : kMagnitude[nibble & 7U];
}

double e4m3(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15U);
  const double mantissa = code & 7U;
  if ((code & 127U) == 127U) return NAN;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8, -6) : std::ldexp(1 + mantissa / 8, exponent - 7);
  return (code & 128U) != 0 ? -magnitude : magnitude;
}

double e8m0(unsigned code) {
  return code == 255 ? NAN : std::ldexp(1.0, static_cast<int>(code) - 127);
}

bool same(float got, double expected) {
  const auto rounded = static_cast<float>(expected);
  if (std::isnan(rounded)) return std::isnan(got);
  return got == rounded && std::signbit(got) == std::signbit(rounded);
}

monolayer::TensorView view(DType dtype, std::int64_t rows, std::int64_t cols, const void* data,
                           std::size_t bytes) {
  return {dtype, {rows, cols}, static_cast<const std::byte*>(data), bytes, "w", "f"};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::int64_t groups = 1 + (data[0] >> 2) % 4;
  const auto kind = data[0] % 3;
  const std::int64_t cols = kind == 2 ? 1 + data[1] % 64 : groups * 32;
  data += 2;
  size -= 2;
  const auto weight_row = static_cast<std::size_t>(kind == 0 ? cols / 2 : cols);
  const auto scale_row = static_cast<std::size_t>(kind == 2 ? 4 : groups);
  const std::size_t rows = size / (weight_row + scale_row);
  const std::vector<std::uint8_t> weight(data, data + rows * weight_row);
  std::vector<float> storage(rows * scale_row / 4 + 1);
  std::memcpy(storage.data(), data + rows * weight_row, rows * scale_row);
  const auto* scale = reinterpret_cast<const std::uint8_t*>(storage.data());

  QuantizedMatrix matrix;
  matrix.format = kind == 0   ? WeightFormat::kMXFP4
                  : kind == 1 ? WeightFormat::kMXFP8
                              : WeightFormat::kFP8PerChannel;
  matrix.rows = static_cast<std::int64_t>(rows);
  matrix.cols = cols;
  matrix.weight = view(kind == 0 ? DType::kU8 : DType::kE4M3, matrix.rows,
                       static_cast<std::int64_t>(weight_row), weight.data(), weight.size());
  matrix.scale = view(kind == 2 ? DType::kF32 : DType::kU8, matrix.rows, kind == 2 ? 1 : groups,
                      scale, rows * scale_row);
  std::vector<float> got(rows * static_cast<std::size_t>(cols));
  dequantize(matrix, 0, matrix.rows, got.data());

  bool finite = true, negative_scale = false, huge_scale = false;
  for (std::size_t row = 0; row < rows; ++row) {
    if (kind == 2) {
      negative_scale = negative_scale || storage[row] < 0;
      huge_scale = huge_scale || storage[row] > 0x1.fffffep127F / 448.0F;
      finite = finite && std::isfinite(storage[row]);
    }
    for (std::size_t col = 0; col < static_cast<std::size_t>(cols); ++col) {
      const std::uint8_t byte = weight[row * weight_row + (kind == 0 ? col / 2 : col)];
      const unsigned code = kind != 0 ? byte : col % 2 == 0 ? byte & 15U : byte >> 4;
      const double factor = kind == 2 ? storage[row] : e8m0(scale[row * scale_row + col / 32]);
      const double expected = (kind == 0 ? e2m1(code) : e4m3(code)) * factor;
      const float value = got[row * static_cast<std::size_t>(cols) + col];
      FUZZ_CHECK(same(value, expected));
      finite = finite && std::isfinite(value);
    }
  }
  const bool accepted = monolayer::check_values(matrix).ok();
  if (kind == 2) {
    FUZZ_CHECK(accepted == (finite && !negative_scale && !huge_scale));
  } else {
    FUZZ_CHECK(accepted == finite);
  }
  return 0;
}

// Exact decoding of every stored format to float32, one row range at a time.
#include <array>
#include <bit>

#include "checkpoint/quantized_tensor.h"

namespace monolayer {
namespace {

const std::array<float, 256>& e4m3_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (std::size_t code = 0; code < 256; ++code)
      values[code] = e4m3_to_f32(static_cast<std::uint8_t>(code));
    return values;
  }();
  return table;
}

void decode_mxfp4(const std::uint8_t* weight, const std::uint8_t* scale, std::int64_t cols,
                  float* out) {
  for (std::int64_t group = 0; group < cols / kMxGroup; ++group) {
    const float factor = e8m0_to_f32(scale[group]);
    for (std::int64_t i = 0; i < kMxGroup / 2; ++i) {
      const std::uint8_t pair = *weight++;
      *out++ = e2m1_to_f32(pair & 15U) * factor;
      *out++ = e2m1_to_f32(pair >> 4) * factor;
    }
  }
}

void decode_mxfp8(const std::uint8_t* weight, const std::uint8_t* scale, std::int64_t cols,
                  float* out) {
  const std::array<float, 256>& table = e4m3_table();
  for (std::int64_t group = 0; group < cols / kMxGroup; ++group) {
    const float factor = e8m0_to_f32(scale[group]);
    for (std::int64_t i = 0; i < kMxGroup; ++i) *out++ = table[*weight++] * factor;
  }
}

void decode_plain(const TensorView& weight, std::int64_t first, std::int64_t count, float* out) {
  if (weight.dtype == DType::kF32) {
    const auto* values = weight.as<float>() + first;
    for (std::int64_t i = 0; i < count; ++i) out[i] = values[i];
  } else if (weight.dtype == DType::kF16) {
    const auto* values = weight.as<std::uint16_t>() + first;
    for (std::int64_t i = 0; i < count; ++i) out[i] = f16_to_f32(values[i]);
  } else {
    const auto* values = weight.as<bf16_t>() + first;
    for (std::int64_t i = 0; i < count; ++i) out[i] = bf16_to_f32(values[i]);
  }
}

}  // namespace

void dequantize(const QuantizedMatrix& matrix, std::int64_t begin, std::int64_t end, float* out) {
  const std::int64_t cols = matrix.cols;
  if (matrix.format == WeightFormat::kPlain) {
    decode_plain(matrix.weight, begin * cols, (end - begin) * cols, out);
    return;
  }
  const auto* weight = matrix.weight.as<std::uint8_t>();
  for (std::int64_t row = begin; row < end; ++row, out += cols) {
    switch (matrix.format) {
      case WeightFormat::kMXFP4:
        decode_mxfp4(weight + row * (cols / 2),
                     matrix.scale.as<std::uint8_t>() + row * (cols / kMxGroup), cols, out);
        break;
      case WeightFormat::kMXFP8:
        decode_mxfp8(weight + row * cols, matrix.scale.as<std::uint8_t>() + row * (cols / kMxGroup),
                     cols, out);
        break;
      default: {
        const float factor = matrix.scale.as<float>()[row];
        const std::array<float, 256>& table = e4m3_table();
        for (std::int64_t i = 0; i < cols; ++i) out[i] = table[weight[row * cols + i]] * factor;
      }
    }
  }
}

}  // namespace monolayer

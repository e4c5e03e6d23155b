// Float32 rows to the stored formats. The inverse is dequantize() in quantized_tensor.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/status.h"

namespace monolayer {

// How a group's shared exponent follows from its largest magnitude.
enum class MxRule : std::uint8_t {
  kOcp,   // floor(log2(max)): values up to 2^(e+1) saturate
  kEven,  // max rounded to a power of two first: 1.75 * 2^e and more take the next exponent (except
          // at 2^127, where the elements would decode to infinity)
};

// values [rows, cols] row-major, cols a multiple of 32. weight [rows, cols/2], scale [rows,
// cols/32]. Elements round to nearest even and saturate; a group of zeros gets scale 1 (byte 127).
// kInvalidArgument naming `name` and the place for NaN or infinity, or for a wrong cols.
Status quantize_mxfp4(const float* values, std::int64_t rows, std::int64_t cols, MxRule rule,
                      std::string_view name, std::uint8_t* weight, std::uint8_t* scale);
// The same with E4M3 elements: weight [rows, cols].
Status quantize_mxfp8(const float* values, std::int64_t rows, std::int64_t cols, MxRule rule,
                      std::string_view name, std::uint8_t* weight, std::uint8_t* scale);
// scale[row] = max|row| / 448, weight = e4m3(value / scale); a row of zeros gets scale 1. Any cols.
Status quantize_fp8_per_channel(const float* values, std::int64_t rows, std::int64_t cols,
                                std::string_view name, std::uint8_t* weight, float* scale);

}  // namespace monolayer

// Random operands for tests of the tile functions, and their values in double by definition.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/tiles.h"

namespace monolayer::cpu::test {

inline constexpr Format kFormats[] = {Format::kF32, Format::kBF16, Format::kE4M3, Format::kMXFP8,
                                      Format::kMXFP4};

inline const char* format_name(Format format) {
  switch (format) {
    case Format::kF32:
      return "F32";
    case Format::kBF16:
      return "BF16";
    case Format::kE4M3:
      return "E4M3";
    case Format::kMXFP8:
      return "MXFP8";
    case Format::kMXFP4:
      return "MXFP4";
  }
  return "?";
}

inline bool is_mx(Format format) { return format == Format::kMXFP8 || format == Format::kMXFP4; }

// Bytes of columns [0, cols) of a row.
inline std::int64_t row_size(Format format, std::int64_t cols) {
  switch (format) {
    case Format::kF32:
      return cols * 4;
    case Format::kBF16:
      return cols * 2;
    case Format::kMXFP4:
      return (cols + 1) / 2;
    default:
      return cols;
  }
}

inline std::int64_t groups(std::int64_t cols) { return (cols + 31) / 32; }

// What the random bits may contain.
enum class Content {
  kTame,    // finite, of moderate size: sums can be checked against double
  kAnyBit,  // any bit pattern: NaN, infinities, subnormals, negative zero, all scale codes
};

// Random bits: the given bytes first (a fuzzer's input), then a generator seeded by them.
class Random {
 public:
  using result_type = std::uint64_t;
  explicit Random(std::uint64_t seed) : rest_(seed) {}
  Random(const std::uint8_t* data, std::size_t size) : data_(data), size_(size), rest_(size) {}

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return ~result_type{0}; }
  result_type operator()() {
    if (size_ < 8) return rest_();
    result_type value = 0;
    std::memcpy(&value, data_, 8);
    data_ += 8;
    size_ -= 8;
    if (size_ < 8) rest_.seed(value);
    return value;
  }

 private:
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  std::mt19937_64 rest_;
};

inline std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline float tame_float(Random& random) {
  const auto value = std::normal_distribution<float>()(random);
  return pick(random, 0, 15) == 0 ? 0.0F : value;
}

// Any pattern, with the special ones and ordinary sizes common enough to meet each other.
inline float any_float(Random& random) {
  const auto bits = static_cast<std::uint32_t>(random());
  switch (pick(random, 0, 11)) {
    case 0:
      return std::bit_cast<float>(bits & 0x80000000U);  // +-0
    case 1:
      return std::bit_cast<float>(bits & 0x807fffffU);  // subnormal
    case 2:
      return std::bit_cast<float>(bits);
    case 3:
      return std::bit_cast<float>((bits & 0x80000000U) | (bits % 64 == 0 ? 0x7f800000U : 0));
    case 4:
      return bits % 64 == 0 ? std::bit_cast<float>(0x7fc00000U | bits) : 1.0F;
    default:
      return tame_float(random);
  }
}

struct MatrixCase {
  Matrix view;
  std::vector<std::byte> data, scales;

  MatrixCase(Random& random, Format format, std::int64_t rows, std::int64_t cols, Content content,
             bool row_factors = true) {
    view.format = format;
    view.rows = rows;
    view.cols = cols;
    view.row_bytes = row_size(format, cols) + pick(random, 0, 3);
    data = bytes_of(random, rows * view.row_bytes + 64);
    const std::int64_t offset = pick(random, 0, 63);
    view.data = data.data() + offset;
    if (content == Content::kTame || pick(random, 0, 1) == 0) {
      tame(random, offset);
    } else if (format == Format::kF32 || format == Format::kBF16) {
      sprinkle(random, offset);
    }
    if (is_mx(format)) {
      view.scale_row_bytes = groups(cols) + pick(random, 0, 3);
      scales = bytes_of(random, rows * view.scale_row_bytes + 64);
      if (content == Content::kTame) {
        for (std::byte& code : scales) code = static_cast<std::byte>(pick(random, 117, 137));
      }
      view.scales = scales.data() + pick(random, 0, 63);
    } else if (format == Format::kE4M3 && row_factors) {
      scales.resize(static_cast<std::size_t>(rows * 4 + 64));
      std::byte* at = scales.data() + pick(random, 0, 63);
      for (std::int64_t o = 0; o < rows; ++o) {
        const float factor =
            content == Content::kTame ? std::exp(tame_float(random)) : any_float(random);
        std::memcpy(at + o * 4, &factor, 4);
      }
      view.scales = at;
    }
  }

  const std::byte* row(std::int64_t o) const {
    return static_cast<const std::byte*>(view.data) + o * view.row_bytes;
  }

  // Value of one element times its scale, by the formats' definitions.
  double value(std::int64_t o, std::int64_t column) const;

 private:
  static std::vector<std::byte> bytes_of(Random& random, std::int64_t count) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }

  // Overwrites the rows' own bytes with finite values; the gaps between rows stay random.
  void tame(Random& random, std::int64_t offset) {
    for (std::int64_t o = 0; o < view.rows; ++o) {
      std::byte* at = data.data() + offset + o * view.row_bytes;
      for (std::int64_t i = 0; i < view.cols; ++i) {
        const float value = tame_float(random);
        const auto bits = std::bit_cast<std::uint32_t>(value);
        if (view.format == Format::kF32) {
          std::memcpy(at + i * 4, &value, 4);
        } else if (view.format == Format::kBF16) {
          const auto high = static_cast<std::uint16_t>(bits >> 16);
          std::memcpy(at + i * 2, &high, 2);
        } else if (view.format != Format::kMXFP4 && (at[i] & std::byte{0x7f}) == std::byte{0x7f}) {
          at[i] = std::byte{0x08};
        }
      }
    }
  }
  void sprinkle(Random& random, std::int64_t offset) {
    for (std::int64_t o = 0; o < view.rows; ++o) {
      std::byte* at = data.data() + offset + o * view.row_bytes;
      for (std::int64_t i = 0; i < view.cols; ++i) {
        const float value = any_float(random);
        const auto bits = std::bit_cast<std::uint32_t>(value);
        const auto high = static_cast<std::uint16_t>(bits >> 16);
        if (view.format == Format::kF32) {
          std::memcpy(at + i * 4, &value, 4);
        } else {
          std::memcpy(at + i * 2, &high, 2);
        }
      }
    }
  }
};

inline double e4m3_by_definition(unsigned code) {
  const int exponent = static_cast<int>(code >> 3) & 15;
  const int mantissa = static_cast<int>(code & 7);
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? mantissa * 0x1p-9 : (1 + mantissa / 8.0) * std::ldexp(1.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

inline double e2m1_by_definition(unsigned code) {
  const int exponent = static_cast<int>(code >> 1) & 3;
  const int mantissa = static_cast<int>(code & 1);
  const double magnitude =
      exponent == 0 ? mantissa * 0.5 : (1 + mantissa * 0.5) * std::ldexp(1.0, exponent - 1);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

inline double MatrixCase::value(std::int64_t o, std::int64_t column) const {
  const std::byte* at = row(o);
  double element = 0;
  float f32 = 0;
  std::uint16_t bf16 = 0;
  switch (view.format) {
    case Format::kF32:
      std::memcpy(&f32, at + column * 4, 4);
      return f32;
    case Format::kBF16:
      std::memcpy(&bf16, at + column * 2, 2);
      return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
    case Format::kMXFP4: {
      const auto byte = std::to_integer<unsigned>(at[column / 2]);
      element = e2m1_by_definition(column % 2 == 0 ? byte & 15 : byte >> 4);
      break;
    }
    default:
      element = e4m3_by_definition(std::to_integer<unsigned>(at[column]));
  }
  const auto* codes = static_cast<const std::byte*>(view.scales);
  if (is_mx(view.format)) {
    const auto code = std::to_integer<int>(codes[o * view.scale_row_bytes + column / 32]);
    return element * std::ldexp(1.0, code - 127);
  }
  if (codes == nullptr) return element;
  std::memcpy(&f32, codes + o * 4, 4);
  return element * f32;
}

inline std::vector<float> floats(Random& random, std::int64_t count, Content content) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = content == Content::kTame ? tame_float(random) : any_float(random);
  }
  return values;
}

// Same bits, any NaN being equal to any other.
inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

}  // namespace monolayer::cpu::test

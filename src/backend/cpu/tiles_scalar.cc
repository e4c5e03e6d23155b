// The specification in code: every other variant must return these bits. Written to be read; it
// relies on std::fma alone, which is exact with or without fused hardware.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "backend/cpu/tiles_exp.h"
#include "backend/cpu/tiles_variants.h"
#include "core/dtype.h"

namespace monolayer::cpu {
namespace {

constexpr std::int64_t kMaxChunk = kLanes * 8;

template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

bool has_group_scales(Format format) {
  return format == Format::kMXFP8 || format == Format::kMXFP4;
}

float tree(const float* lanes) {
  float x[kLanes];
  std::copy_n(lanes, kLanes, x);
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) x[l] = x[l] + x[l + half];
  }
  return x[0];
}

// Element `column` of a row as the decoders deliver it: divided by activation_factor.
float element(Format format, const std::byte* row, std::int64_t column) {
  switch (format) {
    case Format::kF32:
      return load<float>(row + column * 4);
    case Format::kBF16:
      return bf16_to_f32(load<bf16_t>(row + column * 2));
    case Format::kE4M3:
    case Format::kMXFP8:
      return e4m3_to_f32(load<std::uint8_t>(row + column)) * 0x1p-8F;
    case Format::kMXFP4: {
      const auto byte = load<std::uint8_t>(row + column / 2);
      const float value = e2m1_to_f32(static_cast<std::uint8_t>(byte >> (column % 2 * 4)));
      return value * 0x1p25F + 0.0F;  // the code of -0 counts as +0
    }
  }
  return 0;
}

float group_scale(std::uint8_t code) {
  return code == 0xff ? std::numeric_limits<float>::infinity() : e8m0_to_f32(code);
}

// Columns [begin, end) of one chunk as values in stored order, with their group scales; zeros past
// `end`, and past the last group the smallest scale, which cannot matter.
struct Chunk {
  float values[kMaxChunk];
  float scales[kLanes];

  Chunk(const Matrix& w, std::int64_t row, std::int64_t begin, std::int64_t end) {
    const auto* data = static_cast<const std::byte*>(w.data) + row * w.row_bytes;
    const std::int64_t columns = chunk_columns(w.format);
    for (std::int64_t i = 0; i < columns; ++i) {
      values[i] = begin + i < end ? element(w.format, data, begin + i) : 0.0F;
    }
    if (!has_group_scales(w.format)) return;
    const auto* codes = static_cast<const std::byte*>(w.scales) + row * w.scale_row_bytes;
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const std::int64_t group = begin + lane * values_per_word(w.format) / 32 * 32;
      scales[lane] =
          group_scale(group < end ? load<std::uint8_t>(codes + group / 32) : std::uint8_t{0});
    }
  }
};

void permute(Format format, const float* x, std::int64_t cols, float* xp) {
  const std::int64_t per_word = values_per_word(format);
  for (std::int64_t i = 0; i < padded_columns(format, cols); ++i) {
    const std::int64_t word = i / per_word;
    const std::int64_t to = (word / kLanes * per_word + i % per_word) * kLanes + word % kLanes;
    xp[to] = i < cols ? x[i] * activation_factor(format) : 0.0F;
  }
}

float dot(const Matrix& w, std::int64_t row, std::int64_t col_begin, std::int64_t col_end,
          const float* xp) {
  const std::int64_t per_word = values_per_word(w.format);
  float acc[kLanes] = {};
  for (std::int64_t begin = col_begin; begin < col_end; begin += chunk_columns(w.format)) {
    const Chunk chunk(w, row, begin, col_end);
    const float* x = xp + (begin - col_begin);
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float* value = chunk.values + lane * per_word;
      if (has_group_scales(w.format)) {
        float t = value[0] * x[lane];
        for (std::int64_t e = 1; e < per_word; ++e) t = std::fma(value[e], x[e * kLanes + lane], t);
        acc[lane] = std::fma(chunk.scales[lane], t, acc[lane]);
      } else {
        for (std::int64_t e = 0; e < per_word; ++e) {
          acc[lane] = std::fma(value[e], x[e * kLanes + lane], acc[lane]);
        }
      }
    }
  }
  float sum = tree(acc);
  if (w.format == Format::kE4M3 && w.scales != nullptr) {
    sum *= load<float>(static_cast<const std::byte*>(w.scales) + row * 4);
  }
  return sum;
}

void matmul(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, std::int64_t col_begin,
            std::int64_t col_end, const float* xp, std::int64_t x_stride, std::int64_t batch,
            float* y, std::int64_t y_stride) {
  for (std::int64_t o = row_begin; o < row_end; ++o) {
    for (std::int64_t r = 0; r < batch; ++r) {
      y[r * y_stride + (o - row_begin)] = dot(w, o, col_begin, col_end, xp + r * x_stride);
    }
  }
}

void matmul_split(const Matrix& w, std::int64_t row_begin, std::int64_t row_end,
                  const std::int64_t* columns, const std::int64_t* offsets, std::int64_t parts,
                  const float* xp, float* y) {
  for (std::int64_t o = row_begin; o < row_end; ++o) {
    for (std::int64_t j = 0; j < parts; ++j) {
      y[(o - row_begin) * parts + j] = dot(w, o, columns[j], columns[j + 1], xp + offsets[j]);
    }
  }
}

void weighted_sum(const Matrix& v, const float* p, float* out) {
  std::fill_n(out, v.cols, 0.0F);
  const float factor = activation_factor(v.format);
  for (std::int64_t j = 0; j < v.rows; ++j) {
    const auto* row = static_cast<const std::byte*>(v.data) + j * v.row_bytes;
    for (std::int64_t d = 0; d < v.cols; ++d) {
      out[d] = std::fma(p[j] * factor, element(v.format, row, d), out[d]);
    }
  }
}

float sum_squares(const float* x, std::int64_t n) {
  float acc[kLanes] = {};
  for (std::int64_t i = 0; i < n; ++i) acc[i % kLanes] = std::fma(x[i], x[i], acc[i % kLanes]);
  return tree(acc);
}

void scale_by_norm(const float* x, float scale, const std::uint16_t* weight, std::int64_t n,
                   float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = round_bf16((x[i] * scale) * (1.0F + bf16_to_f32(weight[i])));
  }
}

float exponential(float x) {
  namespace c = exp_constants;
  x = x < c::kLow ? c::kLow : x;  // both keep a NaN
  x = x > c::kHigh ? c::kHigh : x;
  const float rounded = std::fma(x, c::kLog2E, c::kRound);
  const float n = rounded - c::kRound;
  float r = std::fma(n, -c::kLn2High, x);
  r = std::fma(n, -c::kLn2Low, r);
  float q = std::fma(c::kQ4, r, c::kQ3);
  q = std::fma(q, r, c::kQ2);
  q = std::fma(q, r, c::kQ1);
  q = std::fma(q, r, c::kQ0);
  const float p = std::fma(r * r, q, r) + 1.0F;
  // 2^n in two normal factors, so that a subnormal result is rounded once, by the last product.
  const std::int32_t power =
      std::bit_cast<std::int32_t>(rounded) - std::bit_cast<std::int32_t>(c::kRound);
  const std::int32_t first = power >> 1;
  const auto power_of_two = [](std::int32_t e) {
    return std::bit_cast<float>((static_cast<std::uint32_t>(e) + 127U) << 23);
  };
  return (p * power_of_two(first)) * power_of_two(power - first);
}

void swiglu(const float* gate, const float* up, std::int64_t n, float alpha, float limit,
            float beta, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = limit < gate[i] ? limit : gate[i];  // comparisons keep a NaN
    float u = limit < up[i] ? limit : up[i];
    u = -limit > u ? -limit : u;
    const float sigmoid = 1.0F / (1.0F + exponential(-(alpha * g)));
    out[i] = round_bf16((g * sigmoid) * (u + beta));
  }
}

void softmax_chunk(const float* s, std::int64_t n, float* p, float* max, float* sum) {
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < n; ++i) largest = largest < s[i] ? s[i] : largest;
  largest += 0.0F;  // -0 becomes +0 whatever the order of comparisons was
  float acc[kLanes] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const float e = exponential(s[i] - largest);
    acc[i % kLanes] += e;
    p[i] = round_bf16(e);
  }
  *max = largest;
  *sum = tree(acc);
}

float maximum(const float* x, std::int64_t n) {
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = std::isnan(x[i]) ? -1e30F : x[i];
    largest = largest < value ? value : largest;
  }
  return largest + 0.0F;
}

}  // namespace

const Tiles kScalarTiles = {
    .name = "scalar",
    .permute = permute,
    .matmul = matmul,
    .matmul_split = matmul_split,
    .weighted_sum = weighted_sum,
    .sum_squares = sum_squares,
    .scale_by_norm = scale_by_norm,
    .swiglu = swiglu,
    .softmax_chunk = softmax_chunk,
    .maximum = maximum,
    .exponential = exponential,
};

}  // namespace monolayer::cpu

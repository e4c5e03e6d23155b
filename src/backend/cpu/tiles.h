// The tile functions of the CPU backend: each exists once per instruction set, all variants compute
// the same bits, and the native chain and the fused layer call the same ones.
//
// Order of every dot product (docs/numerics.md): 16 float32 lanes. The stored row is read as
// little-endian words from the first column of the range; word w goes to lane w mod 16; inside a
// word the elements go in ascending order, one fma each. Words past the range count as zeros up to
// a whole chunk of 16. Lanes are added in a fixed tree: l and l + 8, then + 4, + 2, + 1.
// A word is as wide as decodes cheapest, 16 bits for 8-bit formats and 32 for the others: it holds
// 1 F32, 2 BF16, 2 E4M3 or 8 E2M1 values and no shuffle is needed to decode it; the activation is
// permuted instead, once per row and format.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace monolayer::cpu {

inline constexpr std::int64_t kLanes = 16;

enum class Format : std::uint8_t {
  kF32,    // 1 value a word
  kBF16,   // 2
  kE4M3,   // 2; one float32 factor per row applied after the lane tree
  kMXFP8,  // 2; E4M3 with one E8M0 per 32 columns: t = lane sum over one word's values (first a
           //    product, then fma), then acc = fma(scale, t, acc)
  kMXFP4,  // 8; the same with a word's 8 values
};

constexpr std::int64_t values_per_word(Format format) {
  switch (format) {
    case Format::kF32:
      return 1;
    case Format::kMXFP4:
      return 8;
    default:
      return 2;
  }
}
// The decoders deliver E4M3 as value * 2^-8 and E2M1 as value * 2^25; the permuted activation
// carries the opposite power, so that products come out unscaled. Exact while |x| stays below
// 2^120 (8-bit formats) and above 2^-101 or zero (MXFP4; for BF16 values above 2^-117).
constexpr float activation_factor(Format format) {
  switch (format) {
    case Format::kE4M3:
    case Format::kMXFP8:
      return 0x1p8F;
    case Format::kMXFP4:
      return 0x1p-25F;
    default:
      return 1.0F;
  }
}
// Columns that fill all lanes once; a permuted activation is padded with zeros to a multiple of it.
constexpr std::int64_t chunk_columns(Format format) { return kLanes * values_per_word(format); }
constexpr std::int64_t padded_columns(Format format, std::int64_t columns) {
  const std::int64_t chunk = chunk_columns(format);
  return (columns + chunk - 1) / chunk * chunk;
}

// A borrowed matrix [rows, cols], row-major as stored (also cached keys: one row per token).
struct Matrix {
  Format format = Format::kBF16;
  std::int64_t rows = 0, cols = 0;
  const void* data = nullptr;        // any alignment
  std::int64_t row_bytes = 0;        // distance between rows
  const void* scales = nullptr;      // MX: E8M0 [rows, cols/32]; E4M3: float32 [rows] or null (= 1)
  std::int64_t scale_row_bytes = 0;  // MX only
};

struct Tiles {
  std::string_view name;  // "scalar", "avx2", "avx512", "neon"

  // x [cols] float32 -> xp [padded_columns(format, cols)], the order in which words are decoded,
  // zero past cols: xp[(chunk * values_per_word + element) * 16 + lane] = x * activation_factor.
  void (*permute)(Format format, const float* x, std::int64_t cols, float* xp);

  // y[r * y_stride + (o - row_begin)] = dot(W[o, col_begin:col_end], x_r) for o in
  // [row_begin, row_end), r in [0, batch). xp: x_r[col_begin:col_end] permuted, x_stride apart.
  // MX formats: col_begin a multiple of 32. Overwrites y. Bits of one (o, r) depend on nothing
  // else. Never reads a byte outside the rows' own bytes. An E4M3 NaN code makes its row's outputs
  // NaN; the E8M0 code 0xFF, refused in files, acts as infinity.
  void (*matmul)(const Matrix& w, std::int64_t row_begin, std::int64_t row_end,
                 std::int64_t col_begin, std::int64_t col_end, const float* xp,
                 std::int64_t x_stride, std::int64_t batch, float* y, std::int64_t y_stride);

  // The same for one activation in `parts` ranges of columns, a row read from end to end:
  // y[(o - row_begin) * parts + j] = dot(W[o, columns[j]:columns[j + 1]], x), xp + offsets[j] being
  // x[columns[j]:columns[j + 1]] permuted. No part is empty.
  void (*matmul_split)(const Matrix& w, std::int64_t row_begin, std::int64_t row_end,
                       const std::int64_t* columns, const std::int64_t* offsets, std::int64_t parts,
                       const float* xp, float* y);

  // out[d] = sum over j ascending of fma(p[j], value(j, d), out[d]), out starting at 0; `v` is
  // [n, dims] in kF32, kBF16 or kE4M3 (unscaled; |p| < 2^120). Rows with p[j] == 0 are still read,
  // so a NaN or infinity in them reaches the output.
  void (*weighted_sum)(const Matrix& v, const float* p, float* out);

  // sum of x[i]^2 in 16 lanes (i mod 16) and the tree.
  float (*sum_squares)(const float* x, std::int64_t n);

  // out[i] = (x[i] * scale) * (1 + weight[i]), rounded to BF16; weight as stored (BF16).
  void (*scale_by_norm)(const float* x, float scale, const std::uint16_t* weight, std::int64_t n,
                        float* out);

  // Per value: g = min(gate, limit); u = clamp(up, -limit, limit);
  // out = BF16(g * sigmoid(alpha * g) * (u + beta)), kept as float32.
  void (*swiglu)(const float* gate, const float* up, std::int64_t n, float alpha, float limit,
                 float beta, float* out);

  // One attention chunk: s[i] is scaled, p[i] = BF16(exp(s[i] - max)) as float32; returns max and
  // the sum of the unrounded exponentials (16 lanes, i mod 16, tree). n >= 1. Entries of -inf get
  // p = 0. A NaN never becomes max, but its p and the sum are NaN; the sum also is if max is
  // infinite.
  void (*softmax_chunk)(const float* s, std::int64_t n, float* p, float* max, float* sum);

  // Largest of n >= 1 values; NaN counts as -1e30. A zero result is +0.
  float (*maximum)(const float* x, std::int64_t n);

  // The shared exponential, for merges: the same polynomial as in softmax_chunk and swiglu, at most
  // 2 ulp off. 0 below -103.98, infinity above 88.73, NaN for NaN.
  float (*exponential)(float x);
};

// Every variant this build carries and this machine can run, the best first; "scalar" is last.
std::span<const Tiles* const> available_tiles();
// The one named by `name`, the best if `name` is empty; null if it is not available.
const Tiles* find_tiles(std::string_view name);

}  // namespace monolayer::cpu

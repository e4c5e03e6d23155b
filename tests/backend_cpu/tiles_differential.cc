#include "tiles_differential.h"

#include <algorithm>

namespace monolayer::cpu::test {
namespace {

using Floats = std::vector<float>;

Content any_content(Random& random) {
  return pick(random, 0, 2) == 0 ? Content::kTame : Content::kAnyBit;
}

std::string difference(const std::string& what, const Floats& a, const Floats& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same(a[i], b[i])) {
      char text[128];
      std::snprintf(text, sizeof text, " [%zu]: %a (%08x) and %a (%08x)", i,
                    static_cast<double>(a[i]), std::bit_cast<std::uint32_t>(a[i]),
                    static_cast<double>(b[i]), std::bit_cast<std::uint32_t>(b[i]));
      return what + text;
    }
  }
  return {};
}

// Mostly short rows, where the edges are, sometimes long ones.
std::int64_t any_length(Random& random) {
  return pick(random, 0, 3) == 0 ? pick(random, 1, 3000) : pick(random, 1, 300);
}

std::string compare_matmul(Random& random, const Tiles& a, const Tiles& b) {
  const Format format = kFormats[pick(random, 0, 4)];
  const std::int64_t rows = pick(random, 1, 40);
  const std::int64_t cols = any_length(random);
  const std::int64_t batch = pick(random, 0, 3) == 0 ? pick(random, 1, 70) : pick(random, 1, 9);
  const MatrixCase w(random, format, rows, cols, any_content(random), pick(random, 0, 1) == 0);
  std::int64_t col_begin = pick(random, 0, cols - 1);
  if (is_mx(format)) col_begin = col_begin / 32 * 32;
  const std::int64_t col_end = pick(random, col_begin + 1, cols);
  const std::int64_t row_begin = pick(random, 0, rows - 1);
  const std::int64_t row_end = pick(random, row_begin + 1, rows);
  const std::int64_t n = col_end - col_begin;
  const std::int64_t padded = padded_columns(format, n);
  const std::int64_t stride = padded + pick(random, 0, 9);
  const std::int64_t y_stride = row_end - row_begin + pick(random, 0, 3);
  const Floats x = floats(random, batch * n, any_content(random));
  const std::string what = std::string("matmul ") + format_name(format) + " columns " +
                           std::to_string(col_begin) + ".." + std::to_string(col_end) + " batch " +
                           std::to_string(batch);

  Floats xa(static_cast<std::size_t>(batch * stride), 9.0F);
  Floats xb(xa);
  Floats ya(static_cast<std::size_t>(batch * y_stride), -7.0F);
  Floats yb(ya);
  const auto run = [&](const Tiles& tiles, Floats& xp, Floats& y) {
    for (std::int64_t r = 0; r < batch; ++r) {
      tiles.permute(format, x.data() + r * n, n, xp.data() + r * stride);
    }
    tiles.matmul(w.view, row_begin, row_end, col_begin, col_end, xp.data(), stride, batch, y.data(),
                 y_stride);
  };
  run(a, xa, ya);
  run(b, xb, yb);
  std::string found = difference("permute " + what, xa, xb);
  if (found.empty()) found = difference(what, ya, yb);
  if (!found.empty()) return found;

  // The same output alone: neither its neighbours nor the batch may show.
  const std::int64_t r = pick(random, 0, batch - 1);
  const std::int64_t o = pick(random, row_begin, row_end - 1);
  Floats alone(1);
  a.matmul(w.view, o, o + 1, col_begin, col_end, xa.data() + r * stride, 0, 1, alone.data(), 1);
  const Floats together(1, ya[static_cast<std::size_t>(r * y_stride + o - row_begin)]);
  return difference("alone and together: " + what, alone, together);
}

// Parts of one activation, together and each by itself.
std::string compare_split(Random& random, const Tiles& a, const Tiles& b) {
  const Format format = kFormats[pick(random, 0, 4)];
  const std::int64_t rows = pick(random, 1, 12);
  const std::int64_t parts = pick(random, 1, 10);
  const std::int64_t unit = is_mx(format) ? 32 : pick(random, 1, 33);
  std::vector<std::int64_t> columns(1,
                                    is_mx(format) ? 32 * pick(random, 0, 3) : pick(random, 0, 9));
  std::vector<std::int64_t> offsets;
  // Parts of equal whole chunks now and then, as real models have them.
  const std::int64_t width =
      pick(random, 0, 1) == 0 ? chunk_columns(format) * pick(random, 1, 3) : 0;
  std::int64_t size = 0;
  for (std::int64_t j = 0; j < parts; ++j) {
    const std::int64_t n = width != 0 ? width : unit * pick(random, 1, 9);
    columns.push_back(columns.back() + n);
    offsets.push_back(size);
    size += padded_columns(format, n) + pick(random, 0, 5);
  }
  const std::int64_t cols = columns.back() + pick(random, 0, 40) + 1;
  const MatrixCase w(random, format, rows, cols, any_content(random), pick(random, 0, 1) == 0);
  const std::int64_t row_begin = pick(random, 0, rows - 1);
  const std::int64_t row_end = pick(random, row_begin + 1, rows);
  const Floats x = floats(random, cols, any_content(random));
  Floats xp(static_cast<std::size_t>(size) + 1, 9.0F);
  for (std::size_t j = 0; j < offsets.size(); ++j) {
    a.permute(format, x.data() + columns[j], columns[j + 1] - columns[j], xp.data() + offsets[j]);
  }
  const auto outputs = static_cast<std::size_t>((row_end - row_begin) * parts);
  Floats ya(outputs + 1, -7.0F);
  Floats yb(ya);
  a.matmul_split(w.view, row_begin, row_end, columns.data(), offsets.data(), parts, xp.data(),
                 ya.data());
  b.matmul_split(w.view, row_begin, row_end, columns.data(), offsets.data(), parts, xp.data(),
                 yb.data());
  const std::string what = std::string("matmul_split ") + format_name(format) + " in " +
                           std::to_string(parts) + " parts";
  std::string found = difference(what, ya, yb);
  if (!found.empty()) return found;
  Floats alone(outputs + 1, -7.0F);
  for (std::int64_t o = row_begin; o < row_end; ++o) {
    for (std::size_t j = 0; j < offsets.size(); ++j) {
      float& y = alone[static_cast<std::size_t>((o - row_begin) * parts) + j];
      b.matmul(w.view, o, o + 1, columns[j], columns[j + 1], xp.data() + offsets[j], 0, 1, &y, 1);
    }
  }
  return difference("by itself: " + what, ya, alone);
}

float bf16_of(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000U);
}

// What steps of one row multiply: BF16 values of one size or of sizes far apart, very large and
// very small ones, powers of two alone, zeros, and a few that are none of that.
Floats activations(Random& random, std::int64_t count) {
  Floats values = floats(random, count, Content::kTame);
  int size = 0;
  std::uint32_t kept = pick(random, 0, 7) == 0 ? 0xff800000U : 0xffff0000U;
  switch (pick(random, 0, 5)) {
    case 0:
    case 1:
      size = static_cast<int>(pick(random, -140, 130));
      break;
    case 2:  // where integer sums of few bits no longer fit a float32 once they are scaled
      size = static_cast<int>(pick(random, 106, 112));
      kept = 0xff800000U;
      break;
    default:
      break;
  }
  const std::int64_t apart = pick(random, 0, 3);  // in how many lanes values are far apart
  const bool strange = pick(random, 0, 5) == 0;
  for (float& value : values) {
    if (pick(random, 0, 63) < apart)
      value *= std::ldexp(1.0F, static_cast<int>(pick(random, -40, 10)));
    value = bf16_of(std::ldexp(value, size));
    value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & kept);
    if (strange && pick(random, 0, 99) == 0) value = any_float(random);
  }
  return values;
}

// One activation, whole chunks and enough rows that it pays to lay the activation out anew.
std::string compare_one_row(Random& random, const Tiles& a, const Tiles& b) {
  const Format format = pick(random, 0, 1) == 0 ? Format::kE4M3 : Format::kMXFP4;
  const std::int64_t parts = pick(random, 1, 9);
  const std::int64_t width = chunk_columns(format) * pick(random, 1, 3);
  const std::int64_t cols = parts * width;
  const std::int64_t rows = pick(random, 64, 70);
  MatrixCase w(random, format, rows, cols, any_content(random), pick(random, 0, 1) == 0);
  Floats x = activations(random, cols);
  const std::int64_t zeros_from = pick(random, 0, 2) == 0 ? 0 : chunk_columns(format);
  if (pick(random, 0, 2) == 0) {  // a row of zeros of either sign, or but for its first chunk
    std::byte* row = w.data.data() + (w.row(rows / 2) - w.data.data());
    for (std::int64_t i = row_size(format, zeros_from); i < row_size(format, cols); ++i) {
      row[i] &= format == Format::kE4M3 ? std::byte{0x80} : std::byte{0x88};
    }
  }
  if (is_mx(format) && pick(random, 0, 2) == 0) {  // sums that vanish, to zeros of either sign
    for (std::byte& code : w.scales) code = static_cast<std::byte>(pick(random, 0, 40));
    if (pick(random, 0, 1) == 0) {
      for (float& value : x) value = -bf16_of(0x1p-60F * (1.0F + std::fabs(value)));
      std::byte* row = w.data.data() + (w.row(rows / 2) - w.data.data());
      for (std::int64_t i = 0; i < row_size(format, cols); ++i) row[i] &= std::byte{0x77};
    }
  }
  const std::string what = std::string("one row, ") + format_name(format) + ", " +
                           std::to_string(parts) + " parts of " + std::to_string(width);
  Floats xp(static_cast<std::size_t>(cols));
  Floats ya(static_cast<std::size_t>(rows), -7.0F);
  Floats yb(ya);
  a.permute(format, x.data(), cols, xp.data());
  a.matmul(w.view, 0, rows, 0, cols, xp.data(), cols, 1, ya.data(), rows);
  b.matmul(w.view, 0, rows, 0, cols, xp.data(), cols, 1, yb.data(), rows);
  std::string found = difference(what, ya, yb);
  if (!found.empty()) return found;

  std::vector<std::int64_t> columns;
  for (std::int64_t j = 0; j <= parts; ++j) columns.push_back(j * width);
  Floats split_a(static_cast<std::size_t>(rows * parts), -7.0F);
  Floats split_b(split_a);
  a.matmul_split(w.view, 0, rows, columns.data(), columns.data(), parts, xp.data(), split_a.data());
  b.matmul_split(w.view, 0, rows, columns.data(), columns.data(), parts, xp.data(), split_b.data());
  return difference("split: " + what, split_a, split_b);
}

std::string compare_weighted_sum(Random& random, const Tiles& a, const Tiles& b) {
  const Format format = kFormats[pick(random, 0, 2)];
  const std::int64_t n = pick(random, 0, 130);
  const std::int64_t dims = pick(random, 1, 140);
  const MatrixCase v(random, format, n, dims, any_content(random), false);
  const Floats p = floats(random, n, any_content(random));
  Floats out_a(static_cast<std::size_t>(dims) + 1, -7.0F);
  Floats out_b(out_a);
  a.weighted_sum(v.view, p.data(), out_a.data());
  b.weighted_sum(v.view, p.data(), out_b.data());
  return difference(std::string("weighted_sum ") + format_name(format), out_a, out_b);
}

std::string compare_rows(Random& random, const Tiles& a, const Tiles& b) {
  const std::int64_t n = any_length(random);
  const auto size = static_cast<std::size_t>(n);
  const Content content = any_content(random);
  const Floats x = floats(random, n, content);
  const Floats z = floats(random, n, content);
  const float scale = content == Content::kTame ? tame_float(random) : any_float(random);
  std::vector<std::uint16_t> weight(size);
  for (std::size_t i = 0; i < size; ++i) {
    weight[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(z[i]) >> 16);
  }
  Floats out_a(size + 2, -7.0F);
  Floats out_b(out_a);
  switch (pick(random, 0, 5)) {
    case 0:
      return difference("sum_squares", {a.sum_squares(x.data(), n)}, {b.sum_squares(x.data(), n)});
    case 1:
      a.scale_by_norm(x.data(), scale, weight.data(), n, out_a.data());
      b.scale_by_norm(x.data(), scale, weight.data(), n, out_b.data());
      return difference("scale_by_norm", out_a, out_b);
    case 2:
      a.swiglu(x.data(), z.data(), n, 1.702F, std::fabs(scale), 1.0F, out_a.data());
      b.swiglu(x.data(), z.data(), n, 1.702F, std::fabs(scale), 1.0F, out_b.data());
      return difference("swiglu", out_a, out_b);
    case 3:
      a.softmax_chunk(x.data(), n, out_a.data(), &out_a[size], &out_a[size + 1]);
      b.softmax_chunk(x.data(), n, out_b.data(), &out_b[size], &out_b[size + 1]);
      return difference("softmax_chunk", out_a, out_b);
    case 4:
      return difference("maximum", {a.maximum(x.data(), n)}, {b.maximum(x.data(), n)});
    default:
      for (std::size_t i = 0; i < size; ++i) {
        const float argument = x[i] * static_cast<float>(pick(random, -60, 60));
        out_a[i] = a.exponential(argument);
        out_b[i] = b.exponential(argument);
      }
      return difference("exponential", out_a, out_b);
  }
}

}  // namespace

std::string compare_random_call(Random& random, const Tiles& a, const Tiles& b) {
  switch (pick(random, 0, 5)) {
    case 5:
      return compare_one_row(random, a, b);
    case 0:
    case 1:
      return compare_matmul(random, a, b);
    case 2:
      return compare_split(random, a, b);
    case 3:
      return compare_weighted_sum(random, a, b);
    default:
      return compare_rows(random, a, b);
  }
}

}  // namespace monolayer::cpu::test

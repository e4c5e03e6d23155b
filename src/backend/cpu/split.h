// The fixed eighths of a split input dimension, and the permuted layout that stage outputs take.
#pragma once

#include <array>
#include <cstdint>

#include "backend/cpu/tiles.h"

namespace monolayer::cpu {

// Every matrix whose input dimension a tensor-parallel group may split (o, down) is summed as eight
// partial dot products, so that any rank count up to eight adds the same numbers in the same order.
inline constexpr int kParts = 8;
inline constexpr std::int64_t kSplitUnit = 32;  // columns; also the MX group

// Columns [begin[j], begin[j + 1]) form part j of `parts`; some parts of a narrow matrix are empty.
// The columns of one rank of n, cut into 8 / n parts, are cut where eighths of the whole matrix
// begin: rank_shape() admits only matrices whose n-th is a whole number of units.
struct SplitColumns {
  std::array<std::int64_t, kParts + 1> begin{};
  explicit SplitColumns(std::int64_t columns = 0, std::int64_t parts = kParts) {
    const std::int64_t units = (columns + kSplitUnit - 1) / kSplitUnit;
    for (std::int64_t j = 0; j <= kParts; ++j) {
      const std::int64_t column = j < parts ? j * units / parts * kSplitUnit : columns;
      begin[static_cast<std::size_t>(j)] = column < columns ? column : columns;
    }
  }
};

// One row of activations as the split matrix reads it: each eighth permuted and padded by itself.
struct SplitLayout {
  Format format = Format::kBF16;
  SplitColumns columns;
  std::array<std::int64_t, kParts + 1> offset{};  // floats; offset[kParts] is the row's size

  SplitLayout() = default;
  SplitLayout(Format row_format, std::int64_t cols, std::int64_t parts = kParts)
      : format(row_format), columns(cols, parts) {
    for (std::size_t j = 0; j < kParts; ++j) {
      const std::int64_t width = columns.begin[j + 1] - columns.begin[j];
      offset[j + 1] = offset[j] + padded_columns(format, width);
    }
  }
  std::int64_t size() const { return offset[kParts]; }
};

// Where column c of a permuted row lies (the inverse of Tiles::permute). The width of a word is a
// constant, so that nothing is divided.
template <std::int64_t kValuesPerWord>
constexpr std::int64_t permuted_index(std::int64_t column) {
  const auto c = static_cast<std::uint64_t>(column);
  constexpr std::uint64_t kValues = kValuesPerWord;
  const std::uint64_t word = c / kValues;
  return static_cast<std::int64_t>((word / kLanes * kValues + c % kValues) * kLanes +
                                   word % kLanes);
}

template <std::int64_t kValuesPerWord>
void scatter_words(const SplitLayout& layout, const float* values, std::int64_t begin,
                   std::int64_t end, float* row) {
  const float factor = activation_factor(layout.format);
  for (std::size_t j = 0; j < kParts; ++j) {
    const std::int64_t first = layout.columns.begin[j];
    const std::int64_t last = layout.columns.begin[j + 1];
    const std::int64_t from = begin > first ? begin : first;
    const std::int64_t to = end < last ? end : last;
    if (from >= to) continue;
    float* part = row + layout.offset[j];
    for (std::int64_t c = from; c < to; ++c) {
      part[permuted_index<kValuesPerWord>(c - first)] = values[c - begin] * factor;
    }
    if (to != last) continue;
    const std::int64_t padded = layout.offset[j + 1] - layout.offset[j];
    for (std::int64_t c = last - first; c < padded; ++c) {
      part[permuted_index<kValuesPerWord>(c)] = 0;
    }
  }
}

// Writes values of columns [begin, end) to their places in `row`. Whoever writes the last column of
// an eighth also zeroes its padding, so that disjoint ranges may be written by different threads.
inline void scatter(const SplitLayout& layout, const float* values, std::int64_t begin,
                    std::int64_t end, float* row) {
  switch (values_per_word(layout.format)) {
    case 1:
      return scatter_words<1>(layout, values, begin, end, row);
    case 2:
      return scatter_words<2>(layout, values, begin, end, row);
    default:
      return scatter_words<8>(layout, values, begin, end, row);
  }
}

}  // namespace monolayer::cpu

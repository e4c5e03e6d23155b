// The matrix product of every format, compiled once per instruction set.
#if defined(MONOLAYER_TILES_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MONOLAYER_TILES_MATMUL_INL_H_
#undef MONOLAYER_TILES_MATMUL_INL_H_
#else
#define MONOLAYER_TILES_MATMUL_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "backend/cpu/tiles_accumulate-inl.h"
#include "backend/cpu/tiles_digits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace monolayer::cpu::HWY_NAMESPACE {

// What a call computes, in chunks.
template <Format F>
struct Problem {
  const Matrix& w;
  std::int64_t col_begin, chunks, tail_columns;
  bool gapless;  // between rows

  HWY_INLINE Problem(const Matrix& matrix, std::int64_t begin, std::int64_t end)
      : w(matrix),
        col_begin(begin),
        chunks((end - begin) / Shape<F>::kChunkColumns),
        tail_columns((end - begin) % Shape<F>::kChunkColumns),
        gapless(matrix.row_bytes == ColumnBytes<F>(end - begin)) {}

  // Row `o` from chunk `c` on.
  HWY_INLINE Row At(std::int64_t o, std::int64_t c) const {
    const std::int64_t column = col_begin + c * Shape<F>::kChunkColumns;
    Row row;
    row.data = static_cast<const std::uint8_t*>(w.data) + o * w.row_bytes + ColumnBytes<F>(column);
    row.scales = Shape<F>::kMX ? static_cast<const std::uint8_t*>(w.scales) +
                                     o * w.scale_row_bytes + column / 32
                               : nullptr;
    return row;
  }
  // The output from the sum of its lanes.
  HWY_INLINE float Finish(std::int64_t o, float sum, bool nan) const {
    if (F == Format::kE4M3 && w.scales != nullptr) {
      float factor = 0;
      std::memcpy(&factor, static_cast<const std::uint8_t*>(w.scales) + o * 4, 4);
      sum *= factor;
    }
    return nan ? std::numeric_limits<float>::quiet_NaN() : sum;
  }
};

// The last, partial chunk of kR rows times one activation (all of it, permuted).
template <Format F, int kR>
HWY_INLINE unsigned AddTails(const Row* rows, std::int64_t chunks, std::int64_t tail_columns,
                             const float* xp, VF* HWY_RESTRICT sums) {
  unsigned nan = 0;
  for (int r = 0; r < kR; ++r) {
    Row last = rows[r];
    last.data += chunks * Shape<F>::kChunkBytes;
    if constexpr (Shape<F>::kMX) last.scales += chunks * Shape<F>::kChunkScales;
    Tail<F> tail;
    tail.Fill(last, tail_columns);
    const Row row{tail.data, tail.scales};
    Ahead none{tail.data, 0, 0};
    nan |= Accumulate<F, 1, 1, 1>(&row, 1, &none, xp + chunks * Shape<F>::kChunkColumns,
                                  sums + r * kParts)
           << r;
  }
  return nan;
}

// What to fetch while kR rows, the first of them `row`, are used, kChunks chunks at a time: as many
// whole groups of rows later as Shape asks for.
template <Format F, int kR, int kChunks = 1>
HWY_INLINE Ahead AheadOf(const Problem<F>& problem, const Row& row) {
  constexpr std::int64_t kBytes = Shape<F>::kChunkBytes * kChunks;
  const std::int64_t group = problem.w.row_bytes * kR;
  const std::uint8_t* line = row.data + (Shape<F>::kAheadBytes + group - 1) / group * group;
  constexpr bool kOneStretch = HWY_TARGET == HWY_AVX2 && !Shape<F>::kReadBound;
  if (kOneStretch && problem.gapless) return Ahead{line, kBytes, kBytes * kR};
  return Ahead{line, problem.w.row_bytes, kBytes};
}

// kR rows times one activation.
template <Format F, int kR>
HWY_INLINE void RowsTimesOne(const Problem<F>& problem, std::int64_t o, const float* xp, float* y) {
  Row rows[kR];
  for (int r = 0; r < kR; ++r) rows[r] = problem.At(o + r, 0);
  VF sums[kR * kParts];
  for (VF& sum : sums) sum = hn::Zero(DF());
  Ahead ahead = AheadOf<F, kR>(problem, rows[0]);
  unsigned nan = Accumulate<F, kR, Shape<F>::kRowParts, 1>(rows, problem.chunks, &ahead, xp, sums);
  if (problem.tail_columns != 0) {
    nan |= AddTails<F, kR>(rows, problem.chunks, problem.tail_columns, xp, sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
    y[r] = problem.Finish(o + r, TreeOfParts(sums + r * kParts), (nan >> r & 1U) != 0);
  }
}

#if HWY_TARGET == HWY_AVX2
// The same from an activation laid out anew.
template <Format F, int kR, class Laid>
HWY_INLINE void LaidRowsTimesOne(const Problem<F>& problem, std::int64_t o, const Laid& laid,
                                 const typename Laid::Constants& constants, const float* xp,
                                 float* y) {
  Row rows[kR];
  for (int r = 0; r < kR; ++r) rows[r] = problem.At(o + r, 0);
  VF sums[kR * 2];
  for (VF& sum : sums) sum = hn::Zero(DF());
  typename Laid::Watch watch;
  Ahead ahead = AheadOf<F, kR, Laid::kFetchChunks>(problem, rows[0]);
  laid.template Accumulate<kR>(constants, rows, 0, problem.chunks, &ahead, xp, sums, &watch);
  const bool redo = watch.Redo();
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
    const float sum = TreeOfEight(Laid::Fold(sums + r * 2));
    if (HWY_UNLIKELY(redo || (!Laid::kExactZeros && sum == 0))) {
      RowsTimesOne<F, 1>(problem, o + r, xp, y + r);
    } else {
      y[r] = problem.Finish(o + r, sum, false);
    }
  }
}

// Whether it did: all rows times one activation, laid out anew.
template <Format F, class Laid>
HWY_NOINLINE bool LaidMatmul(const Problem<F>& problem, std::int64_t row_begin,
                             std::int64_t row_end, const float* xp, float* y) {
  Laid laid;
  if (!laid.Append(xp, problem.chunks) || !laid.Worthwhile()) return false;
  const typename Laid::Constants constants;
  std::int64_t o = row_begin;
  for (; o + Laid::kRows <= row_end; o += Laid::kRows) {
    LaidRowsTimesOne<F, Laid::kRows>(problem, o, laid, constants, xp, y + (o - row_begin));
  }
  for (; o < row_end; ++o)
    LaidRowsTimesOne<F, 1>(problem, o, laid, constants, xp, y + (o - row_begin));
  return true;
}
#endif

// Copies `count` permuted activations to [chunk][element][count][16].
HWY_INLINE void SideBySide(const float* x, std::int64_t x_stride, std::int64_t count,
                           std::int64_t columns, float* HWY_RESTRICT out) {
  for (std::int64_t i = 0; i < columns; i += 16) {
    for (std::int64_t b = 0; b < count; ++b) {
      std::memcpy(out + i * count + b * 16, x + b * x_stride + i, 16 * sizeof(float));
    }
  }
}

// Some rows, from `row_of(r)`, times kB activations; returns a bit per row with a NaN code.
template <Format F, int kB, typename RowOf>
HWY_INLINE std::uint64_t RowsTimesSome(const RowOf& row_of, std::int64_t rows, std::int64_t chunks,
                                       std::int64_t ahead, const float* x, float* acc,
                                       std::int64_t acc_row) {
  std::uint64_t nan = 0;
  std::int64_t r = 0;
  if constexpr (kBatchRows > 1) {
    for (; r + kBatchRows <= rows; r += kBatchRows) {
      Row pair[kBatchRows];
      for (int i = 0; i < kBatchRows; ++i) pair[i] = row_of.At(r + i);
      const std::uint64_t found = Block<F, kBatchRows, kBatchParts, kB>(
          pair, chunks, ahead * kBatchRows, x, acc + r * acc_row, acc_row);
      nan |= found << r;
    }
  }
  for (; r < rows; ++r) {
    const Row row = row_of.At(r);
    const std::uint64_t found =
        Block<F, 1, kBatchParts, kB>(&row, chunks, ahead, x, acc + r * acc_row, acc_row);
    nan |= found << r;
  }
  return nan;
}

template <Format F, typename RowOf>
HWY_INLINE std::uint64_t RowsTimesBatch(const RowOf& row_of, std::int64_t rows, std::int64_t chunks,
                                        std::int64_t ahead, const float* x, std::int64_t batch,
                                        float* acc, std::int64_t acc_row) {
  switch (batch) {
    case 1:
      return RowsTimesSome<F, 1>(row_of, rows, chunks, ahead, x, acc, acc_row);
    case 2:
      return RowsTimesSome<F, 2>(row_of, rows, chunks, ahead, x, acc, acc_row);
    case 3:
      return RowsTimesSome<F, 3>(row_of, rows, chunks, ahead, x, acc, acc_row);
    default:
      return RowsTimesSome<F, kBatch>(row_of, rows, chunks, ahead, x, acc, acc_row);
  }
}

template <Format F>
struct StoredRows {
  const Problem<F>& problem;
  std::int64_t first, chunk;
  HWY_INLINE Row At(std::int64_t r) const { return problem.At(first + r, chunk); }
};

template <Format F>
struct TailRows {
  const Tail<F>* tails;
  HWY_INLINE Row At(std::int64_t r) const { return Row{tails[r].data, tails[r].scales}; }
};

// At most kTileRows rows times at most kTileBatch activations.
template <Format F>
HWY_NOINLINE void Tile(const Problem<F>& problem, std::int64_t o, std::int64_t rows,
                       const float* xp, std::int64_t x_stride, std::int64_t batch, float* y,
                       std::int64_t y_stride) {
  constexpr std::int64_t kBlockChunks = kBlockColumns / Shape<F>::kChunkColumns;
  static_assert(kTileRows <= 64);
  alignas(64) float acc[kTileRows * kTileBatch * 16];
  alignas(64) float side_by_side[kBatch * kBlockColumns];
  const std::int64_t acc_row = batch * 16;
  std::memset(acc, 0, static_cast<std::size_t>(rows * acc_row) * sizeof(float));
  std::uint64_t nan = 0;
  for (std::int64_t c = 0; c < problem.chunks; c += kBlockChunks) {
    const std::int64_t chunks = std::min(kBlockChunks, problem.chunks - c);
    const StoredRows<F> stored{problem, o, c};
    for (std::int64_t b = 0; b < batch; b += kBatch) {
      const std::int64_t count = std::min<std::int64_t>(kBatch, batch - b);
      SideBySide(xp + b * x_stride + c * Shape<F>::kChunkColumns, x_stride, count,
                 chunks * Shape<F>::kChunkColumns, side_by_side);
      nan |= RowsTimesBatch<F>(stored, rows, chunks, problem.w.row_bytes, side_by_side, count,
                               acc + b * 16, acc_row);
    }
  }
  if (problem.tail_columns != 0) {
    Tail<F> tails[kTileRows];
    for (std::int64_t r = 0; r < rows; ++r) {
      tails[r].Fill(problem.At(o + r, problem.chunks), problem.tail_columns);
    }
    for (std::int64_t b = 0; b < batch; b += kBatch) {
      const std::int64_t count = std::min<std::int64_t>(kBatch, batch - b);
      SideBySide(xp + b * x_stride + problem.chunks * Shape<F>::kChunkColumns, x_stride, count,
                 Shape<F>::kChunkColumns, side_by_side);
      nan |= RowsTimesBatch<F>(TailRows<F>{tails}, rows, 1, 0, side_by_side, count, acc + b * 16,
                               acc_row);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t b = 0; b < batch; ++b) {
      y[b * y_stride + r] =
          problem.Finish(o + r, Tree(acc + r * acc_row + b * 16), (nan >> r & 1U) != 0);
    }
  }
}

template <Format F>
void MatmulOf(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, std::int64_t col_begin,
              std::int64_t col_end, const float* xp, std::int64_t x_stride, std::int64_t batch,
              float* y, std::int64_t y_stride) {
  const Problem<F> problem(w, col_begin, col_end);
  if (batch == 1) {
#if HWY_TARGET == HWY_AVX2
    using Laid = typename LaidOut<F>::Type;
    if constexpr (!std::is_void_v<Laid>) {
      if (problem.tail_columns == 0 && row_end - row_begin >= Laid::kFewestRows &&
          LaidMatmul<F, Laid>(problem, row_begin, row_end, xp, y)) {
        return;
      }
    }
#endif
    constexpr int kRows = Shape<F>::kRows;
    std::int64_t o = row_begin;
    for (; o + kRows <= row_end; o += kRows) {
      RowsTimesOne<F, kRows>(problem, o, xp, y + (o - row_begin));
    }
    for (; o < row_end; ++o) RowsTimesOne<F, 1>(problem, o, xp, y + (o - row_begin));
    return;
  }
  for (std::int64_t o = row_begin; o < row_end; o += kTileRows) {
    for (std::int64_t b = 0; b < batch; b += kTileBatch) {
      Tile<F>(problem, o, std::min(kTileRows, row_end - o), xp + b * x_stride, x_stride,
              std::min(kTileBatch, batch - b), y + b * y_stride + (o - row_begin), y_stride);
    }
  }
}

void Matmul(const Matrix& w, std::int64_t row_begin, std::int64_t row_end, std::int64_t col_begin,
            std::int64_t col_end, const float* xp, std::int64_t x_stride, std::int64_t batch,
            float* y, std::int64_t y_stride) {
  switch (w.format) {
    case Format::kF32:
      return MatmulOf<Format::kF32>(w, row_begin, row_end, col_begin, col_end, xp, x_stride, batch,
                                    y, y_stride);
    case Format::kBF16:
      return MatmulOf<Format::kBF16>(w, row_begin, row_end, col_begin, col_end, xp, x_stride, batch,
                                     y, y_stride);
    case Format::kE4M3:
      return MatmulOf<Format::kE4M3>(w, row_begin, row_end, col_begin, col_end, xp, x_stride, batch,
                                     y, y_stride);
    case Format::kMXFP8:
      return MatmulOf<Format::kMXFP8>(w, row_begin, row_end, col_begin, col_end, xp, x_stride,
                                      batch, y, y_stride);
    case Format::kMXFP4:
      return MatmulOf<Format::kMXFP4>(w, row_begin, row_end, col_begin, col_end, xp, x_stride,
                                      batch, y, y_stride);
  }
}

}  // namespace monolayer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

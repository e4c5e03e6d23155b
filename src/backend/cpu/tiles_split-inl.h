// Rows times one activation in parts of their columns, compiled once per instruction set.
#if defined(MONOLAYER_TILES_SPLIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MONOLAYER_TILES_SPLIT_INL_H_
#undef MONOLAYER_TILES_SPLIT_INL_H_
#else
#define MONOLAYER_TILES_SPLIT_INL_H_
#endif

#include "backend/cpu/tiles_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace monolayer::cpu::HWY_NAMESPACE {

// The lanes of one output, folded to kFolded of them: the first step (or steps) of the tree.
constexpr int kFolded = HWY_TARGET == HWY_AVX2 ? 8 : 16;

HWY_INLINE void StoreFolded(const VF* parts, float* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_AVX2
  _mm256_store_ps(out, _mm256_add_ps(parts[0].raw, parts[1].raw));
#else
  for (int i = 0; i < kParts; ++i) hn::Store(parts[i], DF(), out + i * kN);
#endif
}

// The rest of the tree for eight outputs side by side.
HWY_INLINE void EightTrees(const float* HWY_RESTRICT folded, float* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_AVX2
  // Outputs i and i + 4 share a register: lanes l + (l + 4) of both.
  __m256 four[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto halves = [&](int half) HWY_ATTR {
      const float* from = folded + i * 8 + half * 4;
      return _mm256_set_m128(_mm_load_ps(from + 32), _mm_load_ps(from));
    };
    four[i] = _mm256_add_ps(halves(0), halves(1));
  }
  // l + (l + 2): lanes 0 and 1 of outputs i (0, 1 of each half) and i + 1 (2, 3).
  const auto pair = [](__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  };
  const __m256 low = pair(four[0], four[1]);
  const __m256 high = pair(four[2], four[3]);
  _mm256_storeu_ps(
      out, _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd)));
#else
  for (int i = 0; i < 8; ++i) out[i] = Tree(folded + i * 16);
#endif
}

// Chains of MXFP4 are short here, often of a single chunk: fewer parts of more rows at a time.
template <Format F>
constexpr int kSplitRows = F == Format::kMXFP4 ? 3 : Shape<F>::kRows;
template <Format F>
constexpr int kSplitParts = F == Format::kMXFP4 ? 1 : Shape<F>::kRowParts;

struct SplitParts {
  struct Part {
    std::int64_t chunks, tail_columns, bytes, scales;
    const float* x;
  };
  std::int64_t count;
  Part part[8];
  bool tails;
};

// At most eight parts of kR rows; reads each row from end to end.
template <Format F, int kR, bool kTails>
HWY_INLINE void SplitRows(const Problem<F>& problem, std::int64_t o, const SplitParts& parts,
                          std::int64_t y_stride, float* HWY_RESTRICT y) {
  using S = Shape<F>;
  alignas(64) float folded[kR * 8 * kFolded];
  Row rows[kR];
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) rows[r] = problem.At(o + r, 0);
  Ahead ahead = AheadOf<F, kR>(problem, rows[0]);
  std::uint64_t nan[kR] = {};
  for (std::int64_t j = 0; j < parts.count; ++j) {
    const SplitParts::Part& part = parts.part[j];
    VF sums[kR * kParts];
#pragma GCC unroll 8
    for (int i = 0; i < kR * kParts; ++i) sums[i] = hn::Zero(DF());
    unsigned found = Accumulate<F, kR, kSplitParts<F>, 1>(rows, part.chunks, &ahead, part.x, sums);
    if constexpr (kTails) {
      if (part.tail_columns != 0) {
        found |= AddTails<F, kR>(rows, part.chunks, part.tail_columns, part.x, sums);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      StoreFolded(sums + r * kParts, folded + (r * 8 + j) * kFolded);
      if constexpr (S::kHasNaNCodes) nan[r] |= std::uint64_t{found >> r & 1U} << j;
      rows[r].data += part.bytes;
      if constexpr (S::kMX) rows[r].scales += part.scales;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
    float outputs[8];
    EightTrees(folded + r * 8 * kFolded, outputs);
    for (std::int64_t j = 0; j < parts.count; ++j) {
      y[r * y_stride + j] = problem.Finish(o + r, outputs[j], (nan[r] >> j & 1U) != 0);
    }
  }
}

#if HWY_TARGET == HWY_AVX2
// The same without tails, from activations laid out anew. kSingle: each part is one chunk.
template <Format F, int kR, bool kSingle, class Laid>
HWY_INLINE void LaidSplitRows(const Problem<F>& problem, std::int64_t o, const SplitParts& parts,
                              const Laid& laid, const typename Laid::Constants& constants,
                              std::int64_t y_stride, float* HWY_RESTRICT y) {
  alignas(64) float folded[kR * 8 * kFolded];
  Row rows[kR];
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) rows[r] = problem.At(o + r, 0);
  typename Laid::Watch watch;
  Ahead ahead = AheadOf<F, kR, Laid::kFetchChunks>(problem, rows[0]);
  std::int64_t chunk = 0;
  for (std::int64_t j = 0; j < parts.count; ++j) {
    const SplitParts::Part& part = parts.part[j];
    VF sums[kR * 2];
#pragma GCC unroll 8
    for (int i = 0; i < kR * 2; ++i) sums[i] = hn::Zero(DF());
    const std::int64_t chunks = kSingle ? 1 : part.chunks;
    laid.template Accumulate<kR>(constants, rows, chunk, chunks, &ahead, part.x, sums, &watch);
    chunk += chunks;
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      _mm256_store_ps(folded + (r * 8 + j) * kFolded, Laid::Fold(sums + r * 2));
    }
  }
  const bool redo = watch.Redo();
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
    alignas(32) float outputs[8];
    EightTrees(folded + r * 8 * kFolded, outputs);
    const __m256 all = _mm256_load_ps(outputs);
    const int zeros = _mm256_movemask_ps(_mm256_cmp_ps(all, _mm256_setzero_ps(), _CMP_EQ_OQ));
    float* out = y + r * y_stride;
    if (HWY_UNLIKELY(redo || (!Laid::kExactZeros && (zeros & ((1 << parts.count) - 1)) != 0))) {
      SplitRows<F, 1, false>(problem, o + r, parts, y_stride, out);
      continue;
    }
    if (parts.count == 8) {
      const bool factors = F == Format::kE4M3 && problem.w.scales != nullptr;
      const auto factor = [&]() HWY_ATTR {
        return _mm256_set1_ps(problem.Finish(o + r, 1.0F, false));
      };
      _mm256_storeu_ps(out, factors ? _mm256_mul_ps(all, factor()) : all);
      continue;
    }
    for (std::int64_t j = 0; j < parts.count; ++j) {
      out[j] = problem.Finish(o + r, outputs[j], false);
    }
  }
}

template <Format F, bool kSingle, class Laid>
HWY_NOINLINE void LaidSplitAll(const Problem<F>& problem, std::int64_t row_begin,
                               std::int64_t row_end, const SplitParts& parts, const Laid& laid,
                               std::int64_t y_stride, float* y) {
  const typename Laid::Constants constants;
  std::int64_t o = row_begin;
  for (; o + Laid::kSplitRows <= row_end; o += Laid::kSplitRows) {
    LaidSplitRows<F, Laid::kSplitRows, kSingle>(problem, o, parts, laid, constants, y_stride,
                                                y + (o - row_begin) * y_stride);
  }
  for (; o < row_end; ++o) {
    LaidSplitRows<F, 1, kSingle>(problem, o, parts, laid, constants, y_stride,
                                 y + (o - row_begin) * y_stride);
  }
}

// Whether it did: all rows in at most eight parts, their activations laid out anew.
template <Format F, class Laid>
HWY_NOINLINE bool LaidSplit(const Problem<F>& problem, std::int64_t row_begin, std::int64_t row_end,
                            const SplitParts& parts, std::int64_t y_stride, float* y) {
  Laid laid;
  bool single = F == Format::kMXFP4;
  for (std::int64_t j = 0; j < parts.count; ++j) {
    if (!laid.Append(parts.part[j].x, parts.part[j].chunks)) return false;
    single = single && parts.part[j].chunks == 1;
  }
  if (!laid.Worthwhile()) return false;
  if constexpr (F == Format::kMXFP4) {
    if (single) {
      LaidSplitAll<F, true>(problem, row_begin, row_end, parts, laid, y_stride, y);
      return true;
    }
  }
  LaidSplitAll<F, false>(problem, row_begin, row_end, parts, laid, y_stride, y);
  return true;
}
#endif

template <Format F, bool kTails>
HWY_NOINLINE void SplitOfEight(const Problem<F>& problem, std::int64_t row_begin,
                               std::int64_t row_end, const SplitParts& parts, std::int64_t y_stride,
                               float* y) {
  constexpr int kRows = kSplitRows<F>;
  std::int64_t o = row_begin;
  for (; o + kRows <= row_end; o += kRows) {
    SplitRows<F, kRows, kTails>(problem, o, parts, y_stride, y + (o - row_begin) * y_stride);
  }
  for (; o < row_end; ++o) {
    SplitRows<F, 1, kTails>(problem, o, parts, y_stride, y + (o - row_begin) * y_stride);
  }
}

template <Format F>
void SplitOf(const Matrix& w, std::int64_t row_begin, std::int64_t row_end,
             const std::int64_t* columns, const std::int64_t* offsets, std::int64_t count,
             const float* xp, float* y) {
  for (std::int64_t first = 0; first < count; first += 8) {
    SplitParts parts{};
    parts.count = std::min<std::int64_t>(8, count - first);
    for (std::int64_t j = 0; j < parts.count; ++j) {
      const std::int64_t width = columns[first + j + 1] - columns[first + j];
      SplitParts::Part& part = parts.part[j];
      part.chunks = width / Shape<F>::kChunkColumns;
      part.tail_columns = width % Shape<F>::kChunkColumns;
      part.bytes = ColumnBytes<F>(width);
      part.scales = width / 32;
      part.x = xp + offsets[first + j];
      parts.tails |= part.tail_columns != 0;
    }
    const Problem<F> problem(w, columns[first], columns[first + parts.count]);
#if HWY_TARGET == HWY_AVX2
    using Laid = typename LaidOut<F>::Type;
    if constexpr (!std::is_void_v<Laid>) {
      if (!parts.tails && row_end - row_begin >= Laid::kFewestRows &&
          LaidSplit<F, Laid>(problem, row_begin, row_end, parts, count, y + first)) {
        continue;
      }
    }
#endif
    if (parts.tails) {
      SplitOfEight<F, true>(problem, row_begin, row_end, parts, count, y + first);
    } else {
      SplitOfEight<F, false>(problem, row_begin, row_end, parts, count, y + first);
    }
  }
}

void MatmulSplit(const Matrix& w, std::int64_t row_begin, std::int64_t row_end,
                 const std::int64_t* columns, const std::int64_t* offsets, std::int64_t parts,
                 const float* xp, float* y) {
  switch (w.format) {
    case Format::kF32:
      return SplitOf<Format::kF32>(w, row_begin, row_end, columns, offsets, parts, xp, y);
    case Format::kBF16:
      return SplitOf<Format::kBF16>(w, row_begin, row_end, columns, offsets, parts, xp, y);
    case Format::kE4M3:
      return SplitOf<Format::kE4M3>(w, row_begin, row_end, columns, offsets, parts, xp, y);
    case Format::kMXFP8:
      return SplitOf<Format::kMXFP8>(w, row_begin, row_end, columns, offsets, parts, xp, y);
    case Format::kMXFP4:
      return SplitOf<Format::kMXFP4>(w, row_begin, row_end, columns, offsets, parts, xp, y);
  }
}

}  // namespace monolayer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Words of some rows times some activations, added to their lanes, once per instruction set.
#if defined(MONOLAYER_TILES_ACCUMULATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MONOLAYER_TILES_ACCUMULATE_INL_H_
#undef MONOLAYER_TILES_ACCUMULATE_INL_H_
#else
#define MONOLAYER_TILES_ACCUMULATE_INL_H_
#endif

#include "backend/cpu/tiles_decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace monolayer::cpu::HWY_NAMESPACE {

// Several activations: kBatch of them share what is decoded of kBatchRows rows, in kBatchParts of
// their parts at a time: eight chains, enough to hide the latency of an fma.
constexpr int kBatch = 4;
constexpr int kBatchParts = HWY_MIN(kParts, 2);
constexpr int kBatchRows = 2 / kBatchParts;
// They are copied side by side, a block of columns that fits the first-level cache at a time,
constexpr std::int64_t kBlockColumns = 1024;
// and the lanes of this many outputs are kept aside (64 KB).
constexpr std::int64_t kTileRows = 64;
constexpr std::int64_t kTileBatch = 16;

template <Format F>
struct Shape {
  static constexpr bool kMX = F == Format::kMXFP8 || F == Format::kMXFP4;
  static constexpr bool kHasNaNCodes = F == Format::kMXFP8 || F == Format::kE4M3;
  static constexpr int kPerWord = static_cast<int>(values_per_word(F));
  static constexpr int kChunkColumns = 16 * kPerWord;
  static constexpr int kChunkBytes = 16 * Decoder<F>::kWordBytes;
  static constexpr int kChunkScales = kMX ? kChunkColumns / 32 : 0;
  // One activation: this many rows and parts of rows at a time, so that their chains of fmas
  // overlap. With group scales a chain ends with its chunk and two rows are enough.
  static constexpr bool kFourRows = F == Format::kBF16 || (F == Format::kE4M3 && kParts > 1);
  static constexpr int kRows = kMX && kParts > 1 ? 2 : kFourRows ? 4 : 3;
  // Whether reading takes longer than computing. Weights are fetched at least kAheadBytes ahead.
  static constexpr bool kReadBound = F == Format::kBF16 && (HWY_TARGET == HWY_AVX2);
  static constexpr std::int64_t kAheadBytes = kReadBound ? 32768 : 2048;
  static constexpr int kRowParts = kMX || kHasNaNCodes ? HWY_MIN(kParts, 2) : 1;
};

// One stored row from its first column in the range.
struct Row {
  const std::uint8_t* data;
  const std::uint8_t* scales;
};

// What is fetched into the second-level cache ahead of some rows, a line of each a chunk: the rows
// that come next. Where no bytes lie between rows they may be fetched as the one stretch of memory
// they are: rows that take longer to compute than to read, a cache line of each at a time, were
// read up to a quarter faster so on AVX2, as the processor's own prefetcher joins in. BF16 was not.
struct Ahead {
  const std::uint8_t* line;
  std::int64_t row_step;    // from one row's line to the next one's
  std::int64_t chunk_step;  // from a chunk's lines to the next one's

  template <int kR>
  HWY_INLINE void Fetch() {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) __builtin_prefetch(line + r * row_step, 0, 2);
    line += chunk_step;
  }
};

// Element kElement of kR rows' words, kP parts of each, times kB activations.
template <Format F, int kR, int kP, int kB, int kElement>
HWY_INLINE void Elements(const Decoder<F>* decoders, const float* HWY_RESTRICT x,
                         VF* HWY_RESTRICT t) {
  // Formats that are costly to decode: one decoded vector at a time, or registers run out.
  constexpr int kVectors = kR * kP;
#pragma GCC unroll 64
  for (int n = 0; n < kVectors * kB; ++n) {
    const int i = Shape<F>::kMX ? n / kB : n % kVectors;
    const int b = Shape<F>::kMX ? n % kB : n / kVectors;
    const VF value = decoders[i].template Get<kElement>();
    const VF xv = hn::LoadU(DF(), x + (kElement * kB + b) * 16 + i % kP * kN);
    VF& sum = t[i * kB + b];
    sum = Shape<F>::kMX && kElement == 0 ? hn::Mul(value, xv) : hn::MulAdd(value, xv, sum);
  }
  if constexpr (kElement + 1 < Shape<F>::kPerWord) {
    Elements<F, kR, kP, kB, kElement + 1>(decoders, x, t);
  }
}

// sums[(r * kParts + part) * kB + b], lanes in registers, continue over `chunks` whole chunks of kR
// rows and kB activations; x is [chunk][element][kB][16], for one activation simply as permuted.
// Returns a bit per row: whether a NaN code was seen.
template <Format F, int kR, int kP, int kB>
HWY_INLINE unsigned Accumulate(const Row* rows, std::int64_t chunks, Ahead* ahead,
                               const float* HWY_RESTRICT x, VF* HWY_RESTRICT sums) {
  static_assert(kParts % kP == 0);
  using S = Shape<F>;
  constexpr bool kWholeChunks = S::kHasNaNCodes && HWY_TARGET == HWY_AVX2 && kP == 2;
  constexpr int kCodeWords = HWY_TARGET == HWY_AVX2 ? 16 : kN;  // of one NaNCodes::Note
  const std::uint8_t* data[kR];
  const std::uint8_t* scales[kR];
  NaNCodes codes[kR];
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
    data[r] = rows[r].data;
    scales[r] = rows[r].scales;
  }
  for (std::int64_t c = 0; c < chunks; ++c) {
    ahead->template Fetch<kR>();
#pragma GCC unroll 8
    for (int first = 0; first < kParts; first += kP) {
      Decoder<F> decoders[kR * kP];
      VF t[kR * kP * kB];
#pragma GCC unroll 8
      for (int i = 0; i < kR * kP; ++i) {
        const int r = i / kP;
        const int part = first + i % kP;
        const std::uint8_t* words = data[r] + part * kN * Decoder<F>::kWordBytes;
        if constexpr (kWholeChunks) {
          if (part == 0) Decoder<F>::LoadBoth(words, &decoders[i], &decoders[i + 1]);
        } else {
          decoders[i].Load(words);
        }
        if constexpr (S::kHasNaNCodes) {
          if (part * kN % kCodeWords == 0) codes[r].Note(words);
        }
        if constexpr (!S::kMX) {
#pragma GCC unroll 8
          for (int b = 0; b < kB; ++b) t[i * kB + b] = sums[(r * kParts + part) * kB + b];
        }
      }
      Elements<F, kR, kP, kB, 0>(decoders, x + first * kN, t);
#pragma GCC unroll 8
      for (int i = 0; i < kR * kP; ++i) {
        const int r = i / kP;
        const int part = first + i % kP;
        VF* out = sums + (r * kParts + part) * kB;
        if constexpr (S::kMX) {
          const VF scale = GroupScales<F>(scales[r], part);
#pragma GCC unroll 8
          for (int b = 0; b < kB; ++b) out[b] = hn::MulAdd(scale, t[i * kB + b], out[b]);
        } else {
#pragma GCC unroll 8
          for (int b = 0; b < kB; ++b) out[b] = t[i * kB + b];
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      data[r] += S::kChunkBytes;
      scales[r] += S::kChunkScales;
    }
    x += S::kChunkColumns * kB;
  }
  unsigned nan_rows = 0;
  if constexpr (S::kHasNaNCodes) {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      if (codes[r].Any()) nan_rows |= 1U << r;
    }
  }
  return nan_rows;
}

// The same for lanes in memory: acc[r * acc_row + b * 16 + lane]; fetches each row itself, `ahead`
// bytes on.
template <Format F, int kR, int kP, int kB>
HWY_INLINE unsigned Block(const Row* rows, std::int64_t chunks, std::int64_t ahead,
                          const float* HWY_RESTRICT x, float* HWY_RESTRICT acc,
                          std::int64_t acc_row) {
  const DF df;
  VF sums[kR * kParts * kB];
#pragma GCC unroll 64
  for (int i = 0; i < kR * kParts * kB; ++i) {
    const int r = i / (kParts * kB);
    sums[i] = hn::LoadU(df, acc + r * acc_row + i % kB * 16 + i / kB % kParts * kN);
  }
  Ahead fetch{rows[0].data + ahead, kR > 1 ? rows[kR > 1].data - rows[0].data : 0,
              Shape<F>::kChunkBytes};
  const unsigned nan = Accumulate<F, kR, kP, kB>(rows, chunks, &fetch, x, sums);
#pragma GCC unroll 64
  for (int i = 0; i < kR * kParts * kB; ++i) {
    const int r = i / (kParts * kB);
    hn::StoreU(sums[i], df, acc + r * acc_row + i % kB * 16 + i / kB % kParts * kN);
  }
  return nan;
}

// Stored bytes of that many columns, or of one part of them (an odd last E2M1 value: its byte).
template <Format F>
constexpr std::int64_t ColumnBytes(std::int64_t columns) {
  return F == Format::kMXFP4 ? (columns + 1) / 2
                             : columns * Decoder<F>::kWordBytes / Shape<F>::kPerWord;
}

// The last, partial chunk of a row, copied and filled up with zeros.
template <Format F>
struct Tail {
  alignas(64) std::uint8_t data[64] = {};
  std::uint8_t scales[4] = {};

  HWY_INLINE void Fill(const Row& row, std::int64_t columns) {
    constexpr bool kNibbles = F == Format::kMXFP4;
    const std::int64_t bytes = ColumnBytes<F>(columns);
    std::memcpy(data, row.data, static_cast<std::size_t>(bytes));
    if (kNibbles && columns % 2 != 0) data[bytes - 1] &= 0x0f;
    if (Shape<F>::kMX) {
      std::memcpy(scales, row.scales, static_cast<std::size_t>((columns + 31) / 32));
    }
  }
};

}  // namespace monolayer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

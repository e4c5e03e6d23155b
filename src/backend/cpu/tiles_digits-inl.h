// MXFP4 times one activation on AVX2, for rows of whole chunks: where the sum of a word's products
// is exact, integers give the same bits in fewer instructions.
#if defined(MONOLAYER_TILES_DIGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MONOLAYER_TILES_DIGITS_INL_H_
#undef MONOLAYER_TILES_DIGITS_INL_H_
#else
#define MONOLAYER_TILES_DIGITS_INL_H_
#endif

#include "backend/cpu/tiles_place-inl.h"

#ifndef MONOLAYER_TILES_DIGITS_TABLE_
#define MONOLAYER_TILES_DIGITS_TABLE_
namespace monolayer::cpu::tables {
// E2M1 codes as twice their value plus 12.
alignas(16) inline constexpr std::uint8_t kTwiceE2M1Above[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                                 12, 11, 10, 9,  8,  6,  4,  0};
}  // namespace monolayer::cpu::tables
#endif

#if HWY_TARGET == HWY_AVX2
HWY_BEFORE_NAMESPACE();
namespace monolayer::cpu::HWY_NAMESPACE {

// A lane's eight activations are integers m times a power of two, and a code w is half an integer
// of at most 12. If 12 * sum |m| <= 2^24, every partial sum of the definition's chain has 24 bits
// and is exact; any order then gives the chain's result, that of integers too:
//   sum (2w + 12) m - 12 sum m,
// with 2w + 12 from a byte shuffle and m in two or three signed digits of a byte, multiplied and
// added by pairs. Parts (eight lanes) with a lane where this does not hold go the usual way.
// The one difference: a sum of zero may have the other sign, which shows in outputs of zero alone.
class DigitsMXFP4 {
 public:
  static constexpr std::int64_t kFewestRows = 64;  // below, laying out costs more than it saves
  static constexpr int kRows = 2;
  static constexpr int kSplitRows = 4;  // chains of few chunks leave registers to more rows
  static constexpr bool kExactZeros = false;
  static constexpr int kFetchChunks = 1;  // that fill a line

  // Stays in its register: compilers build constants anew, and load twice what is used twice.
  static HWY_INLINE void Keep(__m256i& value) { __asm__("" : "+x"(value)); }

  struct Constants {
    __m256i nibble, above, weight[3];
    HWY_INLINE Constants()
        : nibble(_mm256_set1_epi8(15)),
          above(_mm256_broadcastsi128_si256(
              _mm_load_si128(reinterpret_cast<const __m128i*>(tables::kTwiceE2M1Above)))),
          weight{_mm256_set1_epi16(1), _mm256_set1_epi16(1 << 8), _mm256_set1_epi16(1 << 14)} {
      Keep(nibble);
      Keep(above);
      for (__m256i& w : weight) Keep(w);
    }
  };

  struct Watch {
    HWY_INLINE bool Redo() const { return false; }
  };

  HWY_INLINE DigitsMXFP4() {}

  // Appends `chunks` chunks of a permuted activation. False if it is too long.
  HWY_INLINE bool Append(const float* xp, std::int64_t chunks) {
    if ((chunks_ + chunks) * 128 > kMostFastColumns) return false;
    for (std::int64_t c = 0; c < chunks; ++c) {
      for (int p = 0; p < 2; ++p) {
        Part& part = parts_[(chunks_ + c) * 2 + p];
        Lay(xp + c * 128 + p * 8, &part);
        exact_ += part.kind != Kind::kInexact ? 1 : 0;
      }
    }
    chunks_ += chunks;
    return true;
  }

  // Whether all that was appended is worth it.
  HWY_INLINE bool Worthwhile() const { return exact_ >= chunks_; }

  // sums[2r + part] of row r continue over `chunks` appended chunks from `chunk` on, and the rows
  // advance; xp is the activation as it was appended.
  template <int kR>
  HWY_INLINE void Accumulate(const Constants& constants, Row* rows, std::int64_t chunk,
                             std::int64_t chunks, Ahead* ahead, const float* xp,
                             VF* HWY_RESTRICT sums, Watch* /*watch*/) const {
    const Part* part = parts_ + chunk * 2;
    for (std::int64_t c = 0; c < chunks; ++c) {
      ahead->template Fetch<kR>();
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) __builtin_prefetch(rows[r].data + 512, 0, 3);
#pragma GCC unroll 2
      for (int p = 0; p < 2; ++p) {
        VF t[kR];
        if (HWY_LIKELY(part[p].kind == Kind::kTwo)) {
          Exact<kR, Kind::kTwo>(constants, rows, p * 32, part[p], t);
        } else if (part[p].kind == Kind::kThree) {
          Exact<kR, Kind::kThree>(constants, rows, p * 32, part[p], t);
        } else if (part[p].kind == Kind::kWide) {
          Exact<kR, Kind::kWide>(constants, rows, p * 32, part[p], t);
        } else {
          Decoder<Format::kMXFP4> decoders[kR];
#pragma GCC unroll 8
          for (int r = 0; r < kR; ++r) decoders[r].Load(rows[r].data + p * 32);
          Elements<Format::kMXFP4, kR, 1, 1, 0>(decoders, xp + c * 128 + p * 8, t);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kR; ++r) {
          VF& sum = sums[r * 2 + p];
          sum = hn::MulAdd(GroupScales<Format::kMXFP4>(rows[r].scales, p), t[r], sum);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        rows[r].data += 64;
        rows[r].scales += 4;
      }
      part += 2;
    }
  }

  // The first step of the tree: lane l + (l + 8).
  static HWY_INLINE __m256 Fold(const VF* sums) { return _mm256_add_ps(sums[0].raw, sums[1].raw); }

 private:
  // Two or three digits and a sum below 2^22, added to the bits of 1.5 * 2^23, which makes it a
  // float32 without conversion; three and a sum up to 2^24; or lanes that are not exact.
  enum class Kind : int { kTwo, kThree, kWide, kInexact };

  struct alignas(64) Part {
    __m256i digit[3][2];  // a byte per element: even ones (the low nibbles), odd ones
    __m256i start;        // -12 sum m, and the bits of 1.5 * 2^23 unless wide
    __m256 unit;          // of the integer sum
    __m256 less;          // -1.5 * 2^23 units
    Kind kind;
  };

  static HWY_INLINE __m256i All(int value) { return _mm256_set1_epi32(value); }
  static HWY_INLINE __m256i LessOrEqual(__m256i a, __m256i b) {  // unsigned
    return _mm256_cmpeq_epi32(_mm256_min_epu32(a, b), a);
  }
  static HWY_INLINE __m256 Power(__m256i biased_exponent) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased_exponent, 23));
  }

  // xp: eight elements, 16 floats apart, of eight lanes.
  static HWY_INLINE void Lay(const float* xp, Part* part) {
    __m256 total = _mm256_setzero_ps();
#pragma GCC unroll 8
    for (int e = 0; e < 8; ++e) {
      total = _mm256_add_ps(
          total, _mm256_and_ps(_mm256_loadu_ps(xp + e * 16), _mm256_castsi256_ps(All(0x7fffffff))));
    }
    // 2^(k - 1) <= 12 sum |x| < 2^k, with a little more than 12 for the rounding of the sum;
    // m = x * 2^(24 - k), and a product in the definition's scale is an integer times 2^k.
    const __m256i exponent =
        _mm256_srli_epi32(_mm256_castps_si256(_mm256_mul_ps(total, _mm256_set1_ps(12.001F))), 23);
    __m256i exact = LessOrEqual(_mm256_sub_epi32(exponent, All(30)), All(190));
    const __m256 inverse = Power(_mm256_sub_epi32(All(277), exponent));
    __m256i m[8];
    __m256i bits = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int e = 0; e < 8; ++e) {
      const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(xp + e * 16), inverse);
      m[e] = _mm256_cvtps_epi32(scaled);
      exact = _mm256_and_si256(
          exact, _mm256_castps_si256(_mm256_cmp_ps(_mm256_cvtepi32_ps(m[e]), scaled, _CMP_EQ_OQ)));
      bits = _mm256_or_si256(bits, m[e]);
    }
    if (_mm256_movemask_epi8(exact) != -1) {
      part->kind = Kind::kInexact;
      return;
    }
    // Factors of two that all eight share go to the unit.
    const __m256i lowest = _mm256_and_si256(bits, _mm256_sub_epi32(_mm256_setzero_si256(), bits));
    const __m256i shared = _mm256_sub_epi32(
        _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(lowest)), 23), All(127));
    part->unit = Power(_mm256_add_epi32(_mm256_add_epi32(exponent, All(1)), shared));
    __m256i sum = _mm256_setzero_si256();
    __m256i magnitudes = _mm256_setzero_si256();
    __m256i small = All(-1);
#pragma GCC unroll 8
    for (int e = 0; e < 8; ++e) {
      m[e] = _mm256_srav_epi32(m[e], shared);
      sum = _mm256_add_epi32(sum, m[e]);
      magnitudes = _mm256_add_epi32(magnitudes, _mm256_abs_epi32(m[e]));
      small = _mm256_and_si256(
          small, LessOrEqual(_mm256_add_epi32(m[e], All(128 + (128 << 8))), All(0xffff)));
    }
    // Neither a sum of 2^22 or more nor a unit whose multiple 1.5 * 2^23 is infinite.
    const __m256i narrow = _mm256_and_si256(LessOrEqual(magnitudes, All(((1 << 22) - 1) / 12)),
                                            LessOrEqual(exponent, All(200)));
    const bool wide = _mm256_movemask_epi8(narrow) != -1;
    // Digits from zero on, of 8 and 8 bits or of 8, 6 and 8, as bytes; then less their middles.
    const bool two = !wide && _mm256_movemask_epi8(small) == -1;
    part->kind = wide ? Kind::kWide : two ? Kind::kTwo : Kind::kThree;
    part->start = _mm256_add_epi32(_mm256_mullo_epi32(sum, All(-12)), All(wide ? 0 : 0x4b400000));
    part->less = _mm256_mul_ps(part->unit, _mm256_set1_ps(-0x1.8p23F));
    const __m256i middles = All(two ? 128 + (128 << 8) : 128 + (32 << 8) + (128 << 14));
    const __m256i second = All(two ? 255 : 63);
    __m256i bytes[3][2] = {};
#pragma GCC unroll 8
    for (int e = 0; e < 8; ++e) {
      const __m256i from_zero = _mm256_add_epi32(m[e], middles);
      const auto put = [&](int d, __m256i digit) HWY_ATTR {
        bytes[d][e % 2] = _mm256_or_si256(bytes[d][e % 2], _mm256_slli_epi32(digit, e / 2 * 8));
      };
      put(0, _mm256_and_si256(from_zero, All(255)));
      put(1, _mm256_and_si256(_mm256_srli_epi32(from_zero, 8), second));
      put(2, _mm256_srli_epi32(from_zero, 14));  // left unused if there are two
    }
    for (int i = 0; i < 2; ++i) {
      const auto less = [](__m256i all, int middle) HWY_ATTR {
        return _mm256_sub_epi8(all, _mm256_set1_epi8(static_cast<char>(middle)));
      };
      part->digit[0][i] = less(bytes[0][i], 128);
      part->digit[1][i] = less(bytes[1][i], two ? 128 : 32);
      part->digit[2][i] = less(bytes[2][i], 128);
    }
  }

  // t[r]: the sums of the words at rows[r].data + offset.
  template <int kR, Kind kKind>
  static HWY_INLINE void Exact(const Constants& constants, const Row* rows, int offset,
                               const Part& part, VF* HWY_RESTRICT t) {
    const __m256i nibble = constants.nibble;
    const __m256i above = constants.above;
    __m256i even[kR];
    __m256i odd[kR];
    __m256i sum[kR];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r].data + offset));
      Keep(words);
      even[r] = _mm256_shuffle_epi8(above, _mm256_and_si256(words, nibble));
      odd[r] = _mm256_shuffle_epi8(above, _mm256_and_si256(_mm256_srli_epi32(words, 4), nibble));
      sum[r] = part.start;
    }
#pragma GCC unroll 4
    for (int d = 0; d < (kKind == Kind::kTwo ? 2 : 3); ++d) {
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(even[r], part.digit[d][0]),
                                               _mm256_maddubs_epi16(odd[r], part.digit[d][1]));
        sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs, constants.weight[d]));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      t[r] = kKind == Kind::kWide
                 ? VF{_mm256_mul_ps(_mm256_cvtepi32_ps(sum[r]), part.unit)}
                 : VF{_mm256_fmadd_ps(_mm256_castsi256_ps(sum[r]), part.unit, part.less)};
    }
  }

  std::int64_t chunks_ = 0;
  std::int64_t exact_ = 0;
  Part parts_[kMostFastColumns / 64];
};

// What lays an activation out for a format's products.
template <Format F>
struct LaidOut {
  using Type = void;
};
template <>
struct LaidOut<Format::kE4M3> {
  using Type = PlacedE4M3;
};
template <>
struct LaidOut<Format::kMXFP4> {
  using Type = DigitsMXFP4;
};

}  // namespace monolayer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif

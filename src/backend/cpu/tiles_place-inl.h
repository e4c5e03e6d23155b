// E4M3 times one activation on AVX2, for rows of whole chunks: the bits of a code are placed inside
// a float32 instead of being converted.
#if defined(MONOLAYER_TILES_PLACE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MONOLAYER_TILES_PLACE_INL_H_
#undef MONOLAYER_TILES_PLACE_INL_H_
#else
#define MONOLAYER_TILES_PLACE_INL_H_
#endif

#include <algorithm>
#include <chrono>

#include "backend/cpu/tiles_accumulate-inl.h"

#if HWY_TARGET == HWY_AVX2
HWY_BEFORE_NAMESPACE();
namespace monolayer::cpu::HWY_NAMESPACE {

// Columns of the longest activation that is laid out anew for a product.
constexpr std::int64_t kMostFastColumns = 16384;

// Whether this processor multiplies subnormal numbers as fast as others. Some do (AMD's Zen),
// others take an assist of a hundred cycles or more. The answer decides about speed alone.
HWY_NOINLINE bool MeasureSubnormals() {
  const auto nanoseconds = [](std::uint32_t bits) {
    const auto begin = std::chrono::steady_clock::now();
    __m256 weight = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(bits)));
    const __m256 x = _mm256_set1_ps(0x1p100F);
    __m256 sum = _mm256_setzero_ps();
    for (int i = 0; i < 500; ++i) {
      __asm__ volatile("" : "+x"(weight));  // not a constant, not out of the loop
      sum = _mm256_fmadd_ps(weight, x, sum);
    }
    __asm__ volatile("" : : "x"(sum));
    return std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  };
  std::int64_t normal = std::numeric_limits<std::int64_t>::max();
  std::int64_t subnormal = normal;
  for (int i = 0; i < 8; ++i) {
    normal = std::min<std::int64_t>(normal, nanoseconds(0x01000000U));
    subnormal = std::min<std::int64_t>(subnormal, nanoseconds(0x00400000U));
  }
  return subnormal < 3 * normal;
}

inline bool SubnormalsAreFree() {
  static const bool free = MeasureSubnormals();
  return free;
}

// A code's sign at bit 31, its exponent and mantissa at bits 26 to 20: value * 2^-120, subnormal
// codes included. One register holds the 16 words of a chunk; its 32-bit halves are an even and an
// odd lane, so that no lane is moved. The activation's lanes are put in that order.
class PlacedE4M3 {
 public:
  static constexpr std::int64_t kFewestRows = 16;  // below, laying out costs more than it saves
  static constexpr int kRows = 4;
  static constexpr int kSplitRows = 4;
  static constexpr bool kExactZeros = true;
  static constexpr int kFetchChunks = 2;  // that fill a line

  struct Constants {
    __m256i field;  // of a code in a float32
    __m256i low;    // the low byte of a word, sign extended, times 16
    HWY_INLINE Constants()
        : field(_mm256_set1_epi32(static_cast<int>(0x87f00000U))), low(_mm256_set1_epi16(16)) {}
  };

  // NaN codes among all the rows of a group.
  class Watch {
   public:
    HWY_INLINE Watch() : largest_(_mm256_setzero_si256()) {}
    HWY_INLINE void Note(__m256i words) {
      largest_ = _mm256_max_epu8(largest_, _mm256_and_si256(words, _mm256_set1_epi8(0x7f)));
    }
    HWY_INLINE bool Redo() const {
      return _mm256_movemask_epi8(_mm256_cmpeq_epi8(largest_, _mm256_set1_epi8(0x7f))) != 0;
    }

   private:
    __m256i largest_;
  };

  HWY_INLINE PlacedE4M3() {}

  // Appends `chunks` chunks of a permuted activation. False where the result might have other bits
  // than the definition's: the factor 2^88 and its like are exact within these bounds only.
  HWY_INLINE bool Append(const float* HWY_RESTRICT xp, std::int64_t chunks) {
    if (columns_ + chunks * 32 > kMostFastColumns || !SubnormalsAreFree()) return false;
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i least = _mm256_set1_epi32((127 - 82) << 23);
    const __m256i span = _mm256_set1_epi32(((32 + 82) << 23) - 1);
    const __m256 factor = _mm256_set1_ps(0x1p88F);
    __m256i fits = _mm256_set1_epi32(-1);
    float* HWY_RESTRICT out = x_ + columns_;
    for (std::int64_t i = 0; i < chunks * 32; i += 16) {
      const __m256 low = _mm256_loadu_ps(xp + i);
      const __m256 high = _mm256_loadu_ps(xp + i + 8);
      for (const __m256 v : {low, high}) {
        const __m256i bits = _mm256_and_si256(_mm256_castps_si256(v), magnitude);
        const __m256i above = _mm256_sub_epi32(bits, least);
        const __m256i inside = _mm256_cmpeq_epi32(_mm256_min_epu32(above, span), above);
        const __m256i zero = _mm256_cmpeq_epi32(bits, _mm256_setzero_si256());
        fits = _mm256_and_si256(fits, _mm256_or_si256(inside, zero));
      }
      const auto store = [&](float* to, __m256 lanes) HWY_ATTR {
        const __m256d ordered = _mm256_permute4x64_pd(_mm256_castps_pd(lanes), 0xd8);
        _mm256_store_ps(to, _mm256_mul_ps(_mm256_castpd_ps(ordered), factor));
      };
      store(out + i, _mm256_shuffle_ps(low, high, 0x88));
      store(out + i + 8, _mm256_shuffle_ps(low, high, 0xdd));
    }
    columns_ += chunks * 32;
    return _mm256_movemask_epi8(fits) == -1;
  }

  HWY_INLINE bool Worthwhile() const { return true; }

  // sums[2r] and sums[2r + 1], the even and the odd lanes of row r, continue over `chunks` chunks
  // whose activation begins at `chunk`, and the rows advance.
  template <int kR>
  HWY_INLINE void Accumulate(const Constants& constants, Row* rows, std::int64_t chunk,
                             std::int64_t chunks, Ahead* ahead, const float* /*xp*/,
                             VF* HWY_RESTRICT sums, Watch* watch) const {
    const float* HWY_RESTRICT x = x_ + chunk * 32;
    const auto place = [&](__m256i bits) HWY_ATTR {
      return VF{_mm256_castsi256_ps(_mm256_and_si256(bits, constants.field))};
    };
    for (std::int64_t c = chunk; c < chunk + chunks; ++c) {
      if (c % kFetchChunks == 0) ahead->template Fetch<kR>();
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r].data));
        const __m256i first = _mm256_maddubs_epi16(constants.low, words);
        const __m256i second = _mm256_srai_epi16(words, 4);
        watch->Note(words);
        const auto add = [&](int lanes, __m256i bits, int at) HWY_ATTR {
          VF& sum = sums[r * 2 + lanes];
          sum = hn::MulAdd(place(bits), hn::Load(DF(), x + at), sum);
        };
        add(0, _mm256_slli_epi32(first, 16), 0);
        add(1, first, 8);
        add(0, _mm256_slli_epi32(second, 16), 16);
        add(1, second, 24);
        rows[r].data += 32;
      }
      x += 32;
    }
  }

  // The first step of the tree: lane l + (l + 8), of the true sums.
  static HWY_INLINE __m256 Fold(const VF* sums) {
    const auto halves = [](__m256 v) HWY_ATTR {
      return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    };
    const __m128 even = halves(sums[0].raw);
    const __m128 odd = halves(sums[1].raw);
    return _mm256_mul_ps(_mm256_set_m128(_mm_unpackhi_ps(even, odd), _mm_unpacklo_ps(even, odd)),
                         _mm256_set1_ps(0x1p24F));
  }

 private:
  std::int64_t columns_ = 0;
  alignas(64) float x_[kMostFastColumns];  // x * 2^96; [chunk][first, second][even, odd][8]
};

}  // namespace monolayer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif

// Lanes and decoders, compiled once per instruction set: 16 float32 lanes are kParts vectors of
// kN, and a decoder turns one part's words into their elements, one vector per element.
#if defined(MONOLAYER_TILES_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MONOLAYER_TILES_DECODE_INL_H_
#undef MONOLAYER_TILES_DECODE_INL_H_
#else
#define MONOLAYER_TILES_DECODE_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "backend/cpu/tiles.h"

#ifndef MONOLAYER_TILES_TABLES_
#define MONOLAYER_TILES_TABLES_
namespace monolayer::cpu::tables {

// E8M0 codes as float32; 0xFF, refused in files, as infinity.
inline constexpr std::array<float, 256> kGroupScale = [] {
  std::array<float, 256> table{};
  for (std::uint32_t code = 0; code < 256; ++code) {
    table[code] = std::bit_cast<float>(code == 0 ? 0x00400000U : code << 23);
  }
  return table;
}();
// E2M1 codes as twice their value; 16 bytes, the look-up table of a byte shuffle.
alignas(16) inline constexpr std::int8_t kTwiceE2M1[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                           0, -1, -2, -3, -4, -6, -8, -12};
// Byte shuffles that move byte 1 or 2 of every 32-bit word to the top and clear the others.
alignas(16) inline constexpr std::uint8_t kByteToTop[3][16] = {
    {},
    {128, 128, 128, 1, 128, 128, 128, 5, 128, 128, 128, 9, 128, 128, 128, 13},
    {128, 128, 128, 2, 128, 128, 128, 6, 128, 128, 128, 10, 128, 128, 128, 14}};
// E2M1 codes as value * 2^25.
alignas(64) inline constexpr float kScaledE2M1[16] = {
    0.0F, 0x1p24F,  0x1p25F,  0x1.8p25F,  0x1p26F,  0x1.8p26F,  0x1p27F,  0x1.8p27F,
    0.0F, -0x1p24F, -0x1p25F, -0x1.8p25F, -0x1p26F, -0x1.8p26F, -0x1p27F, -0x1.8p27F};

}  // namespace monolayer::cpu::tables
#endif

HWY_BEFORE_NAMESPACE();
namespace monolayer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using DU16 = hn::Rebind<std::uint16_t, DF>;
using DF16 = hn::Rebind<hwy::float16_t, DF>;
using DBytesOf16 = hn::Repartition<std::uint8_t, DU16>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using VU16 = hn::Vec<DU16>;

constexpr int kN = HWY_MIN(16, HWY_MAX_BYTES / 4);
constexpr int kParts = 16 / kN;

HWY_INLINE VF AsFloat(VU v) { return hn::BitCast(DF(), v); }

// Constructors are spelled out: implicit ones are compiled without the instruction set.
template <Format F>
struct Decoder;

template <>
struct Decoder<Format::kF32> {
  static constexpr int kWordBytes = 4;
  VU words;
  HWY_INLINE Decoder() {}
  HWY_INLINE void Load(const std::uint8_t* p) {
    words = hn::LoadU(DU(), reinterpret_cast<const std::uint32_t*>(p));
  }
  template <int kElement>
  HWY_INLINE VF Get() const {
    return AsFloat(words);
  }
};

template <>
struct Decoder<Format::kBF16> {
  static constexpr int kWordBytes = 4;
  VU words;
  HWY_INLINE Decoder() {}
  HWY_INLINE void Load(const std::uint8_t* p) {
    words = hn::LoadU(DU(), reinterpret_cast<const std::uint32_t*>(p));
  }
  template <int kElement>
  HWY_INLINE VF Get() const {
    if constexpr (kElement == 0) return AsFloat(hn::ShiftLeft<16>(words));
    return AsFloat(hn::And(words, hn::Set(DU(), 0xffff0000U)));
  }
};

// E4M3 as a half-precision number with the same mantissa and an exponent bias larger by 8: the
// hardware's conversion then gives value * 2^-8, subnormals included. Codes 0x7F and 0xFF come out
// as +-480 * 2^-8: whoever decodes looks for them apart.
template <class D16>
HWY_INLINE hn::Vec<D16> HalvesOfE4M3(D16 du, hn::Vec<D16> code_in_high_byte) {
  const hn::RebindToSigned<D16> di;
  const auto shifted = hn::BitCast(du, hn::ShiftRight<1>(hn::BitCast(di, code_in_high_byte)));
  return hn::And(shifted, hn::Set(du, std::uint16_t{0xbf80}));
}

template <>
struct Decoder<Format::kE4M3> {
  static constexpr int kWordBytes = 2;
  VU16 even, odd;  // half-precision numbers
  HWY_INLINE Decoder() {}
  HWY_INLINE void Load(const std::uint8_t* p) {
    const VU16 words = hn::LoadU(DU16(), reinterpret_cast<const std::uint16_t*>(p));
    even = HalvesOfE4M3(DU16(), hn::ShiftLeft<8>(words));
    odd = HalvesOfE4M3(DU16(), words);
  }
#if HWY_TARGET == HWY_AVX2
  // Both parts of a chunk, whose words fill one register.
  static HWY_INLINE void LoadBoth(const std::uint8_t* p, Decoder<Format::kE4M3>* first,
                                  Decoder<Format::kE4M3>* second) {
    const hn::FixedTag<std::uint16_t, 16> du;
    const auto words = hn::LoadU(du, reinterpret_cast<const std::uint16_t*>(p));
    const auto evens = HalvesOfE4M3(du, hn::ShiftLeft<8>(words));
    const auto odds = HalvesOfE4M3(du, words);
    first->even = hn::LowerHalf(evens);
    first->odd = hn::LowerHalf(odds);
    second->even = hn::UpperHalf(DU16(), evens);
    second->odd = hn::UpperHalf(DU16(), odds);
  }
#endif
  template <int kElement>
  HWY_INLINE VF Get() const {
    return hn::PromoteTo(DF(), hn::BitCast(DF16(), kElement == 0 ? even : odd));
  }
};

template <>
struct Decoder<Format::kMXFP8> : Decoder<Format::kE4M3> {
  HWY_INLINE Decoder() {}
};

// Codes of E4M3 as they are read: whether a NaN was among them.
#if HWY_TARGET == HWY_AVX2
using DCodes = hn::FixedTag<std::uint8_t, 32>;  // a whole chunk
#else
using DCodes = DBytesOf16;  // one part
#endif
class NaNCodes {
 public:
  HWY_INLINE NaNCodes() : largest_(hn::Zero(DCodes())) {}
  HWY_INLINE void Note(const std::uint8_t* p) {
    const DCodes d;
    largest_ = hn::Max(largest_, hn::And(hn::LoadU(d, p), hn::Set(d, std::uint8_t{0x7f})));
  }
  HWY_INLINE bool Any() const {
    const DCodes d;
    return !hn::AllFalse(d, hn::Eq(largest_, hn::Set(d, std::uint8_t{0x7f})));
  }

 private:
  hn::Vec<DCodes> largest_;
};

#if HWY_TARGET <= HWY_AVX3
// A permute of 16 float32 is the look-up; it uses the low four bits of each index only.
template <>
struct Decoder<Format::kMXFP4> {
  static constexpr int kWordBytes = 4;
  VU words;
  HWY_INLINE Decoder() {}
  HWY_INLINE void Load(const std::uint8_t* p) {
    words = hn::LoadU(DU(), reinterpret_cast<const std::uint32_t*>(p));
  }
  template <int kElement>
  HWY_INLINE VF Get() const {
    const __m512i index = _mm512_srli_epi32(words.raw, 4 * kElement);
    return VF{_mm512_permutexvar_ps(index, _mm512_load_ps(tables::kScaledE2M1))};
  }
};
#else
// Two byte shuffles look up the eight values of each word as signed bytes (twice the value); each
// byte is moved to the top of its word and converted, giving value * 2^25.
template <>
struct Decoder<Format::kMXFP4> {
  static constexpr int kWordBytes = 4;
  VU even, odd;
  HWY_INLINE Decoder() {}
  HWY_INLINE void Load(const std::uint8_t* p) {
    const DU du;
    const hn::Repartition<std::uint8_t, DU> db;
    const VU words = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(p));
    const VU mask = hn::Set(du, 0x0f0f0f0fU);
    const auto table =
        hn::LoadDup128(db, reinterpret_cast<const std::uint8_t*>(tables::kTwiceE2M1));
    even = hn::BitCast(du, hn::TableLookupBytes(table, hn::BitCast(db, hn::And(words, mask))));
    odd = hn::BitCast(
        du, hn::TableLookupBytes(table, hn::BitCast(db, hn::And(hn::ShiftRight<4>(words), mask))));
  }
  template <int kElement>
  HWY_INLINE VF Get() const {
    constexpr int kByte = kElement / 2;
    VU top = kElement % 2 == 0 ? even : odd;
    if constexpr (kByte == 0) {
      top = hn::ShiftLeft<24>(top);
    } else if constexpr (kByte == 3) {
      top = hn::And(top, hn::Set(DU(), 0xff000000U));
    } else {
      const hn::Repartition<std::uint8_t, DU> db;
      const auto pick = hn::LoadDup128(db, tables::kByteToTop[kByte]);
      top = hn::BitCast(DU(), hn::TableLookupBytesOr0(hn::BitCast(db, top), pick));
    }
    return hn::ConvertTo(DF(), hn::BitCast(DI(), top));
  }
};
#endif

// Group scales of the lanes of one part; `codes` are the scale bytes of the chunk.
template <Format F>
HWY_INLINE VF GroupScales(const std::uint8_t* codes, int part) {
  const auto& table = tables::kGroupScale;
  if constexpr (F == Format::kMXFP8) {
    return hn::Set(DF(), table[codes[0]]);
  } else {
#if HWY_TARGET <= HWY_AVX3
    (void)part;
    std::uint32_t four = 0;
    std::memcpy(&four, codes, 4);
    // Byte g to bits 16..23 of lanes 4g to 4g + 3, then up into the exponent.
    const __m512i pick = _mm512_set_epi32(  //
        static_cast<int>(0x80038080U), static_cast<int>(0x80038080U), static_cast<int>(0x80038080U),
        static_cast<int>(0x80038080U), static_cast<int>(0x80028080U), static_cast<int>(0x80028080U),
        static_cast<int>(0x80028080U), static_cast<int>(0x80028080U), static_cast<int>(0x80018080U),
        static_cast<int>(0x80018080U), static_cast<int>(0x80018080U), static_cast<int>(0x80018080U),
        static_cast<int>(0x80008080U), static_cast<int>(0x80008080U), static_cast<int>(0x80008080U),
        static_cast<int>(0x80008080U));
    const __m512i bytes = _mm512_shuffle_epi8(_mm512_set1_epi32(static_cast<int>(four)), pick);
    const __m512i exponent = _mm512_slli_epi32(bytes, 7);
    return VF{_mm512_castsi512_ps(_mm512_max_epu32(exponent, _mm512_set1_epi32(0x00400000)))};
#elif HWY_TARGET == HWY_AVX2
    return VF{_mm256_blend_ps(_mm256_set1_ps(table[codes[part * 2]]),
                              _mm256_set1_ps(table[codes[part * 2 + 1]]), 0xf0)};
#else
    static_assert(kN == 4);
    return hn::Set(DF(), table[codes[part]]);
#endif
  }
}

// Lanes l and l + 8 added, then + 4, + 2, + 1.
HWY_INLINE float Tree(const float* HWY_RESTRICT lanes) {
  const hn::FixedTag<float, 4> d4;
  const auto low = hn::Add(hn::LoadU(d4, lanes), hn::LoadU(d4, lanes + 8));
  const auto high = hn::Add(hn::LoadU(d4, lanes + 4), hn::LoadU(d4, lanes + 12));
  float x[4];
  hn::StoreU(hn::Add(low, high), d4, x);
  return (x[0] + x[2]) + (x[1] + x[3]);
}

#if HWY_TARGET == HWY_AVX2
// All but the first step.
HWY_INLINE float TreeOfEight(__m256 eight) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
#endif

// The same for lanes that are still in registers.
HWY_INLINE float TreeOfParts(const VF* parts) {
#if HWY_TARGET == HWY_AVX2
  return TreeOfEight(_mm256_add_ps(parts[0].raw, parts[1].raw));
#else
  alignas(64) float lanes[16];
  for (int i = 0; i < kParts; ++i) hn::Store(parts[i], DF(), lanes + i * kN);
  return Tree(lanes);
#endif
}

}  // namespace monolayer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

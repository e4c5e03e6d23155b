// Everything that works on one row of numbers, compiled once per instruction set. Blocks of 16
// values; a last, partial block goes through a buffer.
#if defined(MONOLAYER_TILES_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MONOLAYER_TILES_ROWS_INL_H_
#undef MONOLAYER_TILES_ROWS_INL_H_
#else
#define MONOLAYER_TILES_ROWS_INL_H_
#endif

#include <algorithm>

#include "backend/cpu/tiles_decode-inl.h"
#include "backend/cpu/tiles_exp.h"
#include "backend/cpu/tiles_variants.h"

HWY_BEFORE_NAMESPACE();
namespace monolayer::cpu::HWY_NAMESPACE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Up to 16 values as kParts vectors, `fill` beyond `count`.
struct Block16 {
  alignas(64) float lanes[16];

  HWY_INLINE Block16(const float* x, std::int64_t count, float fill) {
    for (float& lane : lanes) lane = fill;
    std::memcpy(lanes, x, static_cast<std::size_t>(std::min<std::int64_t>(count, 16)) * 4);
  }
  HWY_INLINE VF Part(int part) const { return hn::Load(DF(), lanes + part * kN); }
};

// a < b ? yes : no, with the same answer to NaN and to +-0 on every instruction set.
HWY_INLINE VF Less(VF a, VF b, VF yes, VF no) { return hn::IfThenElse(hn::Lt(a, b), yes, no); }

HWY_INLINE VF RoundBF16(VF v) {
  const DU du;
  const VU bits = hn::BitCast(du, v);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  const VU rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffU)), odd);
  const VF finite = AsFloat(hn::And(rounded, hn::Set(du, 0xffff0000U)));
  return hn::IfThenElse(hn::Eq(v, v), finite, v);  // a NaN stays as it is
}

HWY_INLINE VF Exp(VF x) {
  namespace c = exp_constants;
  const DF df;
  const DI di;
  const VF low = hn::Set(df, c::kLow);
  const VF high = hn::Set(df, c::kHigh);
  x = Less(x, low, low, x);
  x = Less(high, x, high, x);
  const VF round = hn::Set(df, c::kRound);
  const VF rounded = hn::MulAdd(x, hn::Set(df, c::kLog2E), round);
  const VF n = hn::Sub(rounded, round);
  VF r = hn::MulAdd(n, hn::Set(df, -c::kLn2High), x);
  r = hn::MulAdd(n, hn::Set(df, -c::kLn2Low), r);
  VF q = hn::MulAdd(hn::Set(df, c::kQ4), r, hn::Set(df, c::kQ3));
  q = hn::MulAdd(q, r, hn::Set(df, c::kQ2));
  q = hn::MulAdd(q, r, hn::Set(df, c::kQ1));
  q = hn::MulAdd(q, r, hn::Set(df, c::kQ0));
  const VF p = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), hn::Set(df, 1.0F));
  const auto power = hn::Sub(hn::BitCast(di, rounded), hn::BitCast(di, round));
  const auto first = hn::ShiftRight<1>(power);
  const auto bias = hn::Set(di, 127);
  const VF a = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(first, bias)));
  const VF b = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(hn::Sub(power, first), bias)));
  return hn::Mul(hn::Mul(p, a), b);
}

// Runs op.Run(i, count) over [0, n) in blocks of 16; count < 16 only in the last one.
template <typename Op>
HWY_INLINE void ForBlocks(std::int64_t n, const Op& op) {
  for (std::int64_t i = 0; i < n; i += 16) op.Run(i, std::min<std::int64_t>(16, n - i));
}

HWY_INLINE void StoreSome(const float* block, std::int64_t count, float* out) {
  std::memcpy(out, block, static_cast<std::size_t>(count) * 4);
}

template <Format F>
void PermuteOf(const float* HWY_RESTRICT x, std::int64_t cols, float* HWY_RESTRICT xp) {
  constexpr std::int64_t kPerWord = values_per_word(F);
  constexpr float kFactor = activation_factor(F);
  constexpr std::int64_t kColumns = 16 * kPerWord;
  float last[kColumns] = {};
  for (std::int64_t begin = 0; begin < cols; begin += kColumns) {
    const float* from = x + begin;
    if (cols - begin < kColumns) {
      std::memcpy(last, from, static_cast<std::size_t>(cols - begin) * 4);
      from = last;
    }
    for (std::int64_t e = 0; e < kPerWord; ++e) {
      for (std::int64_t lane = 0; lane < 16; ++lane) {
        xp[begin + e * 16 + lane] = from[lane * kPerWord + e] * kFactor;
      }
    }
  }
}

void Permute(Format format, const float* x, std::int64_t cols, float* xp) {
  switch (format) {
    case Format::kF32:
      return PermuteOf<Format::kF32>(x, cols, xp);
    case Format::kBF16:
      return PermuteOf<Format::kBF16>(x, cols, xp);
    case Format::kE4M3:
    case Format::kMXFP8:
      return PermuteOf<Format::kE4M3>(x, cols, xp);
    case Format::kMXFP4:
      return PermuteOf<Format::kMXFP4>(x, cols, xp);
  }
}

// kN consecutive values of a row.
template <Format F>
HWY_INLINE VF Values(const std::uint8_t* p) {
  const DU16 du16;
  if constexpr (F == Format::kF32) {
    return AsFloat(hn::LoadU(DU(), reinterpret_cast<const std::uint32_t*>(p)));
  } else if constexpr (F == Format::kBF16) {
    const VU16 bits = hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(p));
    return AsFloat(hn::ShiftLeft<16>(hn::PromoteTo(DU(), bits)));
  } else {
    const hn::Rebind<std::uint8_t, DF> du8;
    const VU16 code = hn::PromoteTo(du16, hn::LoadU(du8, p));
    // The one place where NaN codes are found value by value: half precision's NaN has an
    // exponent of all ones.
    const auto nan = hn::Eq(hn::And(code, hn::Set(du16, std::uint16_t{0x7f})),
                            hn::Set(du16, std::uint16_t{0x7f}));
    const VF finite =
        hn::PromoteTo(DF(), hn::BitCast(DF16(), HalvesOfE4M3(DU16(), hn::ShiftLeft<8>(code))));
    const VU lanes = hn::PromoteTo(DU(), hn::VecFromMask(du16, nan));
    return AsFloat(hn::Or(hn::BitCast(DU(), finite), hn::Mul(lanes, hn::Set(DU(), 0x8000U))));
  }
}

// out[0 .. kVectors * kN) of all rows.
template <Format F, int kVectors>
HWY_INLINE void WeightedColumns(const Matrix& v, std::int64_t d, const float* HWY_RESTRICT p,
                                float* HWY_RESTRICT out) {
  constexpr int kBytes = F == Format::kF32 ? 4 : F == Format::kBF16 ? 2 : 1;
  const DF df;
  VF sums[kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) sums[i] = hn::Zero(df);
  const std::uint8_t* row = static_cast<const std::uint8_t*>(v.data) + d * kBytes;
  for (std::int64_t j = 0; j < v.rows; ++j) {
    const VF weight = hn::Set(df, p[j] * activation_factor(F));
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      sums[i] = hn::MulAdd(weight, Values<F>(row + i * kN * kBytes), sums[i]);
    }
    row += v.row_bytes;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) hn::StoreU(sums[i], df, out + d + i * kN);
}

template <Format F>
HWY_INLINE void WeightedSumOf(const Matrix& v, const float* p, float* out) {
  std::int64_t d = 0;
  for (; d + 8 * kN <= v.cols; d += 8 * kN) WeightedColumns<F, 8>(v, d, p, out);
  for (; d + kN <= v.cols; d += kN) WeightedColumns<F, 1>(v, d, p, out);
  if (d == v.cols) return;
  Matrix rest = v;
  rest.cols = v.cols - d;
  constexpr int kBytes = F == Format::kF32 ? 4 : F == Format::kBF16 ? 2 : 1;
  rest.data = static_cast<const std::uint8_t*>(v.data) + d * kBytes;
  kScalarTiles.weighted_sum(rest, p, out + d);
}

void WeightedSum(const Matrix& v, const float* p, float* out) {
  switch (v.format) {
    case Format::kF32:
      return WeightedSumOf<Format::kF32>(v, p, out);
    case Format::kBF16:
      return WeightedSumOf<Format::kBF16>(v, p, out);
    case Format::kE4M3:
      return WeightedSumOf<Format::kE4M3>(v, p, out);
    default:  // not cache formats; correct all the same
      return kScalarTiles.weighted_sum(v, p, out);
  }
}

float SumSquares(const float* x, std::int64_t n) {
  const DF df;
  VF sums[kParts];
  for (VF& sum : sums) sum = hn::Zero(df);
  for (std::int64_t i = 0; i < n; i += 16) {
    const Block16 last(x + i, n - i < 16 ? n - i : 0, 0.0F);
    const float* from = n - i < 16 ? last.lanes : x + i;
    for (int part = 0; part < kParts; ++part) {
      const VF value = hn::LoadU(df, from + part * kN);
      sums[part] = hn::MulAdd(value, value, sums[part]);
    }
  }
  alignas(64) float lanes[16];
  for (int part = 0; part < kParts; ++part) hn::Store(sums[part], df, lanes + part * kN);
  return Tree(lanes);
}

struct ScaleByNormOp {
  const float* x;
  float scale;
  const std::uint16_t* weight;
  float* out;

  HWY_INLINE void Run(std::int64_t i, std::int64_t count) const {
    const DF df;
    const Block16 block(x + i, count, 0.0F);
    alignas(64) std::uint16_t bits[16] = {};
    std::memcpy(bits, weight + i, static_cast<std::size_t>(count) * 2);
    alignas(64) float result[16];
    for (int part = 0; part < kParts; ++part) {
      const VU wide = hn::PromoteTo(DU(), hn::Load(DU16(), bits + part * kN));
      const VF factor = hn::Add(hn::Set(df, 1.0F), AsFloat(hn::ShiftLeft<16>(wide)));
      const VF scaled = hn::Mul(block.Part(part), hn::Set(df, scale));
      hn::Store(RoundBF16(hn::Mul(scaled, factor)), df, result + part * kN);
    }
    StoreSome(result, count, out + i);
  }
};

void ScaleByNorm(const float* x, float scale, const std::uint16_t* weight, std::int64_t n,
                 float* out) {
  ForBlocks(n, ScaleByNormOp{x, scale, weight, out});
}

struct SwigluOp {
  const float* gate;
  const float* up;
  float alpha, limit, beta;
  float* out;

  HWY_INLINE void Run(std::int64_t i, std::int64_t count) const {
    const DF df;
    const Block16 gates(gate + i, count, 0.0F);
    const Block16 ups(up + i, count, 0.0F);
    alignas(64) float result[16];
    const VF one = hn::Set(df, 1.0F);
    const VF high = hn::Set(df, limit);
    const VF low = hn::Set(df, -limit);
    for (int part = 0; part < kParts; ++part) {
      VF g = gates.Part(part);
      g = Less(high, g, high, g);
      VF u = ups.Part(part);
      u = Less(high, u, high, u);
      u = Less(u, low, low, u);
      const VF e = Exp(hn::Neg(hn::Mul(hn::Set(df, alpha), g)));
      const VF sigmoid = hn::Div(one, hn::Add(one, e));
      const VF product = hn::Mul(hn::Mul(g, sigmoid), hn::Add(u, hn::Set(df, beta)));
      hn::Store(RoundBF16(product), df, result + part * kN);
    }
    StoreSome(result, count, out + i);
  }
};

void Swiglu(const float* gate, const float* up, std::int64_t n, float alpha, float limit,
            float beta, float* out) {
  ForBlocks(n, SwigluOp{gate, up, alpha, limit, beta, out});
}

// The largest of all values with NaN replaced by `nan`; a zero is +0. Order cannot matter.
HWY_INLINE float Largest(const float* x, std::int64_t n, float nan) {
  const DF df;
  VF largest = hn::Set(df, -kInfinity);
  for (std::int64_t i = 0; i < n; i += 16) {
    const Block16 block(x + i, n - i, -kInfinity);
    for (int part = 0; part < kParts; ++part) {
      VF value = block.Part(part);
      value = hn::IfThenElse(hn::Eq(value, value), value, hn::Set(df, nan));
      largest = Less(largest, value, value, largest);
    }
  }
  alignas(64) float lanes[kN];
  hn::Store(largest, df, lanes);
  float result = lanes[0];
  for (const float lane : lanes) result = result < lane ? lane : result;
  return result + 0.0F;
}

void SoftmaxChunk(const float* s, std::int64_t n, float* p, float* max, float* sum) {
  const DF df;
  const float largest = Largest(s, n, -kInfinity);
  VF sums[kParts];
  for (VF& part_sum : sums) part_sum = hn::Zero(df);
  for (std::int64_t i = 0; i < n; i += 16) {
    const std::int64_t count = std::min<std::int64_t>(16, n - i);
    const Block16 block(s + i, count, -kInfinity);
    alignas(64) float values[16];
    alignas(64) float rounded[16];
    for (int part = 0; part < kParts; ++part) {
      hn::Store(Exp(hn::Sub(block.Part(part), hn::Set(df, largest))), df, values + part * kN);
    }
    for (std::int64_t l = count; l < 16; ++l) values[l] = 0;
    for (int part = 0; part < kParts; ++part) {
      const VF e = hn::Load(df, values + part * kN);
      sums[part] = hn::Add(sums[part], e);
      hn::Store(RoundBF16(e), df, rounded + part * kN);
    }
    StoreSome(rounded, count, p + i);
  }
  alignas(64) float lanes[16];
  for (int part = 0; part < kParts; ++part) hn::Store(sums[part], df, lanes + part * kN);
  *max = largest;
  *sum = Tree(lanes);
}

float Maximum(const float* x, std::int64_t n) { return Largest(x, n, -1e30F); }

float Exponential(float x) { return hn::GetLane(Exp(hn::Set(DF(), x))); }

}  // namespace monolayer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

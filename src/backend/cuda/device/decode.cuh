// Exact decoding of stored values to pairs of BF16, by bit placement.
//
// E2M1 codes land in the low exponent bits of a BF16 and E4M3 codes in the low ones of another, so
// that a decoded weight is its value times a power of two; BF16 subnormals are honoured by the
// tensor cores and every code is exact. Activations carry kActivationScale to keep products in the
// middle of float32's range, and the sums are multiplied by the opposite power at the end.
#pragma once

#include "backend/cuda/device/ptx.cuh"

namespace monolayer::cuda {

inline constexpr float kActivationScale = 0x1p64F;
inline constexpr float kPostBF16 = 0x1p-64F;
inline constexpr float kPostE4M3 = 0x1p56F;  // weights arrive as value * 2^-120
inline constexpr float kPostE2M1 = 0x1p62F;  // weights arrive as value * 2^-126

// Eight nibbles to the four registers of one 16 x 16 fragment: sign, exponent, exponent, mantissa
// to bits 15, 8, 7, 6 of each half. Where they lie (backend/cuda/pack.cc is the inverse) makes that
// seven instructions of the pipe that shifts right and masks, which is what binds, and two shifts
// to the left, which another pipe does; no arrangement with fewer was found.
__device__ __forceinline__ void decode_e2m1(std::uint32_t w, std::uint32_t (&a)[4]) {
  a[0] = w & 0x81C081C0U;
  a[1] = (w << 6) & 0x81C081C0U;
  a[2] = __funnelshift_r(w, w, 6) & 0x81C081C0U;  // the signs of its halves lie in the other ones
  a[3] = ((w << 4) & 0x81808180U) | ((w >> 4) & 0x00400040U);
}

// Four E4M3 bytes to two registers: bytes 0 and 2, bytes 1 and 3.
__device__ __forceinline__ void decode_e4m3(std::uint32_t w, std::uint32_t& even,
                                            std::uint32_t& odd) {
  even = ((w << 4) & 0x07F007F0U) | ((w << 8) & 0x80008000U);
  odd = ((w >> 4) & 0x07F007F0U) | (w & 0x80008000U);
}

// The same of bytes in the order of columns: 0 and 1, 2 and 3.
__device__ __forceinline__ void decode_e4m3_pairs(std::uint32_t w, std::uint32_t& low,
                                                  std::uint32_t& high) {
  decode_e4m3(__byte_perm(w, 0, 0x3120), low, high);
}

// E8M0 scales of a tile's two rows and two groups of a lane.
__device__ __forceinline__ void decode_scales(std::uint32_t s, float (&f)[4]) {
  f[0] = __uint_as_float((s << 23) & 0x7F800000U);
  f[1] = __uint_as_float((s << 15) & 0x7F800000U);
  f[2] = __uint_as_float((s << 7) & 0x7F800000U);
  f[3] = __uint_as_float((s >> 1) & 0x7F800000U);
}

// Eight consecutive cached values (bytes of E4M3, or BF16) as four pairs; E4M3 times 2^-120.
__device__ __forceinline__ void load_octet(const unsigned char* p, bool fp8,
                                           std::uint32_t (&r)[4]) {
  if (fp8) {
    const uint2 v = __ldcg(reinterpret_cast<const uint2*>(p));
    decode_e4m3_pairs(v.x, r[0], r[1]);
    decode_e4m3_pairs(v.y, r[2], r[3]);
  } else {
    const uint4 v = load_l2(p);
    r[0] = v.x;
    r[1] = v.y;
    r[2] = v.z;
    r[3] = v.w;
  }
}

// The same of E4M3 as FP16, exactly.
__device__ __forceinline__ void load_octet_of_halves(const unsigned char* p,
                                                     std::uint32_t (&r)[4]) {
  const uint2 v = __ldcg(reinterpret_cast<const uint2*>(p));
  halves_of_e4m3(v.x, r[0], r[1]);
  halves_of_e4m3(v.y, r[2], r[3]);
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const bf16x2 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&v);
}
__device__ __forceinline__ float2 unpack_bf16(std::uint32_t v) {
  return {__uint_as_float(v << 16), __uint_as_float(v & 0xFFFF0000U)};
}
// Exact: a power of two.
__device__ __forceinline__ std::uint32_t scale_up(std::uint32_t v) {
  const float2 f = unpack_bf16(v);
  return pack_bf16(f.x * kActivationScale, f.y * kActivationScale);
}
__device__ __forceinline__ uint4 scale_up(uint4 v) {
  return {scale_up(v.x), scale_up(v.y), scale_up(v.z), scale_up(v.w)};
}
// Activations that only products read are stored scaled. Rounding commutes with the power of two.
__device__ __forceinline__ std::uint16_t scaled_bf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x * kActivationScale));
}
// 1 / x of a power of two that is a normal number.
__device__ __forceinline__ float inverse_power(float x) {
  return __uint_as_float((254U << 23) - __float_as_uint(x));
}
__device__ __forceinline__ float round_bf16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

// Rounded to BF16, then FP16 of that times x_scale (Matrix::x_scale).
__device__ __forceinline__ std::uint16_t scaled_half(float x, float x_scale) {
  return __half_as_ushort(__float2half_rn(round_bf16(x) * x_scale));
}

}  // namespace monolayer::cuda

// Hand-offs by words, in the fused kernels of MiniMax-M3: whoever makes a value stores it with a
// tag in one access of 8 or 16 bytes, whoever needs it polls for the tag. No fence, no counter and
// no second trip for the value. Words are zero at launch; a layer's tag is its number in the run
// plus one. What is rehearsed (chain.cuh) has the tag 0, for which nobody waits.
//
// One copy of each word is enough. In steps of one to four rows, which hand over most values so:
// before a block can store a word of the next layer it has taken the whole stream that enters that
// layer, to which every block has contributed after it took everything it takes in this one. The
// same holds for what blocks leave for each other as plain data and count: whoever reads it has
// done so by then. The stream itself, outside words, is read only by the block that wrote it:
// output and down give a block the same columns (m3_shape.cc asks for it). In steps of more rows
// sums of squares (part_norms.cuh) and experts' choices (route_beside.cuh) are words, in dense
// layers sums of squares alone: before a block stores those of the next layer it has counted all
// blocks' arrivals of a later stage than the one they take this layer's in.
#pragma once

#include "backend/cuda/device/give_up.cuh"
#include "backend/cuda/words.h"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// Whether these kernels' fused one hands over words though it has several rows.
inline constexpr bool kFewRows = kM3 && !kOneRow && kMostRows <= kWordRows;

// Of this layer's words.
__device__ __forceinline__ std::uint32_t tag_of(const Context& c) {
  return static_cast<std::uint32_t>(c.layers_done + 1);
}

__device__ __forceinline__ uint4* words_at(int place, int row = 0) {
  return reinterpret_cast<uint4*>(shared().params.barrier + kBarrierWords) + place +
         row * kRowWords;
}

inline constexpr std::uint32_t kPollsBetweenLooks = 64;

// One access: no half of it is seen without the other.
__device__ __forceinline__ uint4 load_words(const uint4* from) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  asm volatile("{.reg .b128 v; ld.relaxed.gpu.global.b128 v, [%2]; mov.b128 {%0, %1}, v;}"
               : "=l"(low), "=l"(high)
               : "l"(from)
               : "memory");
  return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
          static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)};
}
__device__ __forceinline__ void store_words(uint4* to, uint4 w) {
  asm volatile(
      "{.reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.gpu.global.b128 [%0], v;}" ::"l"(to),
      "l"(static_cast<std::uint64_t>(w.y) << 32 | w.x),
      "l"(static_cast<std::uint64_t>(w.w) << 32 | w.z)
      : "memory");
}
// A value and its tag in eight bytes; `place` counts those from the region's start.
__device__ __forceinline__ void store_value(int region, int place, float value, std::uint32_t tag) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(
                   reinterpret_cast<std::uint64_t*>(words_at(region)) + place),
               "l"(static_cast<std::uint64_t>(tag) << 32 | __float_as_uint(value))
               : "memory");
}
__device__ __forceinline__ std::uint64_t load_value(const std::uint64_t* from) {
  std::uint64_t w = 0;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(w) : "l"(from) : "memory");
  return w;
}

// A look at the clock by a wait for words that began at `start`, 0 at the first look: when it
// began, or kGivenUp if it must end. By value and apart: a poll must stay a few instructions.
inline constexpr std::uint64_t kGivenUp = ~0ULL;
__device__ __noinline__ std::uint64_t look(std::uint64_t start, int layer, int stage,
                                           const uint4* late, std::uint32_t tag) {
  const int place = static_cast<int>(late - words_at(0));
  const bool over =
      give_up(start, {.layer = layer, .stage = stage, .region = kHandOff, .index = place}, tag,
              load_words(late).w);
  return over ? kGivenUp : start;
}

// Words at(0..N-1), once all have the tag; `stage`: who makes them. at() gives places that are
// computed once: the loop is loads and comparisons, so that a poll takes no longer than a trip to
// the second-level cache. After giving up they are anything.
template <int N, typename A>
__device__ __forceinline__ void take(uint4 (&w)[N], std::uint32_t tag, int layer, int stage,
                                     A&& at) {
  std::uint64_t start = 0;
  for (std::uint32_t polls = 1;; ++polls) {
#pragma unroll
    for (int k = 0; k < N; ++k) w[k] = load_words(at(k));
    std::uint32_t wrong = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) wrong |= w[k].w ^ tag;
    if (wrong == 0) break;
    if (polls % kPollsBetweenLooks != 0) continue;
    start = look(start, layer, stage, at(N - 1), tag);
    if (start == kGivenUp) break;
  }
}

// Four BF16 or FP16 values of consecutive columns into a word: lanes `stride` apart have one each,
// from this lane on. All lanes of the warp.
__device__ __forceinline__ uint4 four_of_lanes(std::uint16_t own, int first, int stride,
                                               std::uint32_t tag) {
  std::uint32_t v[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    v[k] = __shfl_sync(0xFFFFFFFFU, static_cast<std::uint32_t>(own), first + k * stride & 31);
  return {v[0] | v[1] << 16, v[2] | v[3] << 16, 0, tag};
}

// BF16 values of consecutive columns, of which 2^log_parts lanes each hold one, as words of four of
// a region. All lanes of the warp; `column`: this lane's.
__device__ __forceinline__ void hand_over_columns(int region, int column, int log_parts, bool there,
                                                  std::uint16_t value, std::uint32_t tag) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const uint4 w = four_of_lanes(value, lane, 1 << log_parts, tag);
  if (there && (lane & ((4 << log_parts) - 1)) == 0) store_words(words_at(region) + column / 4, w);
}

// The same of values that four lanes side by side hold, as a word at `to`; by all four of them, and
// whichever others.
__device__ __forceinline__ void hand_over_four(uint4* to, std::uint16_t value, std::uint32_t tag) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const unsigned four = 15U << (lane & 28);
  const std::uint32_t own = value;
  const std::uint32_t pair = own | __shfl_down_sync(four, own, 1) << 16;
  const std::uint32_t next = __shfl_down_sync(four, pair, 2);
  if ((lane & 3) == 0) store_words(to, {pair, next, 0, tag});
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

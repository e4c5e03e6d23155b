// The norm of a step's rows by parts of K (kQkvByPart, kNormsByPart): a block stages only what its
// items meet. For that it needs every row's sum of squares, of which a warp somewhere makes a
// sixteenth and hands it over as a word.
#pragma once

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/device/words.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

static_assert(kSquaresOfRow == kWarps && kSquareRows == kMaxRows);
__device__ __forceinline__ int place_of_squares(int norm, int row) {
  return (norm == kPostNorm ? kMaxRows * kSquaresOfRow : 0) + row * kSquaresOfRow;
}
// This warp's share: the sum that it would make of a row of `from` [rows, hidden] in
// norm_in_registers(). `norm`: kInputNorm or kPostNorm.
__device__ __forceinline__ void hand_over_squares(const Context& c, int norm,
                                                  const std::uint16_t* from) {
  const int task = c.block + c.blocks * c.warp;
  if (task >= c.rows() * kSquaresOfRow) return;
  const int row = task / kSquaresOfRow;
  const int own = task % kSquaresOfRow;
  const auto* at = reinterpret_cast<const uint2*>(from + row * kMaxHidden) + own * 32 + c.lane;
  uint2 v[kNormParts];
#pragma unroll
  for (int k = 0; k < kNormParts; ++k) v[k] = __ldcg(at + k * kThreads);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kNormParts; ++k) sum = squares(unpack_four(v[k]), sum);
  sum = warp_sum(sum);
  if (c.lane == 0 && !is_stalled(norm))
    store_value(kSquareWords, place_of_squares(norm, row) + own, sum, tag_of(c));
}
// Of all columns of a row, once its squares are there; by one warp. Apart: exact roots and
// quotients are much code.
__device__ __noinline__ float take_norm_factor(int norm, int row) {
  const Context c = open_context(own_state());
  const auto* from = reinterpret_cast<const std::uint64_t*>(words_at(kSquareWords)) +
                     place_of_squares(norm, row) + c.lane % kSquaresOfRow;
  const std::uint32_t tag = tag_of(c);
  std::uint64_t start = 0;
  std::uint64_t w = 0;
  for (std::uint32_t polls = 1; static_cast<std::uint32_t>((w = load_value(from)) >> 32) != tag;
       ++polls) {
    if (polls % kPollsBetweenLooks != 0) continue;
    start = look(
        start, layer_of(c), norm,
        words_at(kSquareWords) + (place_of_squares(norm, row) + c.lane % kSquaresOfRow) / 2, tag);
    if (start == kGivenUp) break;
  }
  __syncwarp();
  float total = __uint_as_float(static_cast<std::uint32_t>(w));
#pragma unroll
  for (int d = 1; d < kSquaresOfRow; d <<= 1) total += __shfl_xor_sync(0xFFFFFFFFU, total, d);
  return norm_factor(total, kMaxHidden, c.p.shape.eps);
}

// Columns of all rows and their gains, staged in x as they are.
struct StagedParts {
  int first, columns, row_bytes;  // row_bytes: from one row in x to the next
  __device__ int gains_at(const Context& c) const { return c.rows() * row_bytes; }
};
// The warps of a row.
inline constexpr int kWarpsOfRow = kWarps / kMostRows;

// The stream of a norm: this warp's share of its squares, and this block's parts on their way into
// x.
__device__ __forceinline__ void stage_stream(const Context& c, int norm, const std::uint16_t* from,
                                             const std::uint16_t* weight,
                                             const StagedParts& parts) {
  const int vectors = parts.columns / 8;
  if (c.thread < vectors)
    copy_async(c.x + parts.gains_at(c) + c.thread * 16, weight + parts.first + c.thread * 8);
  hand_over_squares(c, norm, from);
  const int row = c.warp / kWarpsOfRow;
  if (row >= c.rows()) return;
  const auto* at = from + row * kMaxHidden + parts.first;
#pragma unroll 1
  for (int i = c.warp % kWarpsOfRow * 32 + c.lane; i < vectors; i += kWarpsOfRow * 32)
    copy_async(c.x + row * parts.row_bytes + i * 16, at + i * 8);
}
// Norms them, once a row's squares are there. `keep`: takes them too, from column `kept` on.
template <bool HALF>
__device__ __noinline__ void norm_staged_parts(int norm, float x_scale, StagedParts parts,
                                               std::uint16_t* keep, int kept) {
  const Context c = open_context(own_state());
  const int row = c.warp / kWarpsOfRow;
  const bool there = row < c.rows();
  float factor = 0;
  if (there) factor = staged_factor(HALF, take_norm_factor(norm, row), x_scale);
  wait_copies();
  sync(c);
  if (!there) return;
  const auto* gains = reinterpret_cast<const uint4*>(c.x + parts.gains_at(c));
  auto* const x = reinterpret_cast<uint4*>(c.x + row * parts.row_bytes);
#pragma unroll 1
  for (int i = c.warp % kWarpsOfRow * 32 + c.lane; i < parts.columns / 8; i += kWarpsOfRow * 32) {
    const uint4 w = gains[i];
    const uint4 v = x[i];
    uint2 low = scale_by_norm(unpack_four({v.x, v.y}), gains_of({w.x, w.y}), factor);
    uint2 high = scale_by_norm(unpack_four({v.z, v.w}), gains_of({w.z, w.w}), factor);
    if (HALF) low = halves_of(low), high = halves_of(high);
    const uint4 normed = {low.x, low.y, high.x, high.y};
    x[i] = normed;
    const int column = parts.first + i * 8;
    if (column >= kept) *reinterpret_cast<uint4*>(keep + row * kMaxHidden + column) = normed;
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

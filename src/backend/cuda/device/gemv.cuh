// Matrix times up to eight activation columns: the inner loop of every projection.
//
// Warp w of a wave takes part w % parts of row group w / parts. Its sum is one chain over the tiles
// of that part in ascending order (MXFP4: per group of 32 columns a product sum, then one fma with
// the group's scale), so a column's bits depend on nothing but its own values. Parts are added in
// the fixed tree by whoever reads them.
#pragma once

#include "backend/cuda/device/context.cuh"

namespace monolayer::cuda {

// Where columns of K lie in a staged row: part by part, each padded to whole tiles.
struct Layout {
  int cols, parts, part_cols, row_bytes;
  __device__ explicit Layout(const Matrix& m)
      : cols(m.cols), parts(m.parts), part_cols(m.part_cols) {
    const int bytes = parts * part_cols * 2;
    row_bytes = bytes % 128 == 64 ? bytes : bytes + 64;  // rows of a pair in different banks
  }
  __device__ bool padded() const { return parts * part_cols != cols; }
  // Byte offset of column c, a multiple of 8.
  __device__ int at(int c) const {
    if (!padded()) return c * 2;
    const int units = (cols + 31) / 32;
    const int unit = c / 32;
    const int part = (parts * (unit + 1) + units - 1) / units - 1;
    return (part * part_cols + c - part * units / parts * 32) * 2;
  }
};

// One chunk: STEPS tiles of this warp's part. The slot is given back before the arithmetic.
template <Format F, int STEPS>
__device__ __forceinline__ void chunk_product(std::uint32_t tile, std::uint32_t x, int lane,
                                              std::uint32_t empty, bool on, bool active,
                                              float (&acc)[4]) {
  constexpr int kLoads = F == Format::kBF16 ? 2 : 1;
  constexpr int kTile = F == Format::kMXFP4 ? 544 : 512 * kLoads;
  constexpr int kGroups = F == Format::kMXFP4 ? 2 : 1;
  uint4 w[STEPS * kLoads];
  std::uint32_t scales[STEPS];
  if (active) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        w[s * kLoads + l] = load_shared_16(tile + s * kTile + l * 512 + lane * 16);
      }
      if (F == Format::kMXFP4) scales[s] = load_shared_4(tile + s * kTile + 512 + (lane >> 2) * 4);
    }
  }
  __syncwarp();
  if (lane == 0) mbarrier_arrive(empty);
  if (!active) return;
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint4 b = {0, 0, 0, 0};
      if (on) b = load_shared_16(x + (s * kGroups + g) * 64);
      if constexpr (F == Format::kMXFP4) {
        float f[4];
        decode_scales(scales[s], f);
        std::uint32_t a0[4];
        std::uint32_t a1[4];
        decode_e2m1(g == 0 ? w[s].x : w[s].z, a0);
        decode_e2m1(g == 0 ? w[s].y : w[s].w, a1);
        float q[4] = {};
        mma(q, a0[0], a0[1], a0[2], a0[3], b.x, b.y);
        mma(q, a1[0], a1[1], a1[2], a1[3], b.z, b.w);
        acc[0] = fmaf(f[g], q[0], acc[0]);
        acc[1] = fmaf(f[g], q[1], acc[1]);
        acc[2] = fmaf(f[2 + g], q[2], acc[2]);
        acc[3] = fmaf(f[2 + g], q[3], acc[3]);
      } else if constexpr (F == Format::kE4M3) {
        std::uint32_t a[8];
        decode_e4m3(w[s].x, a[0], a[2]);
        decode_e4m3(w[s].y, a[1], a[3]);
        decode_e4m3(w[s].z, a[4], a[6]);
        decode_e4m3(w[s].w, a[5], a[7]);
        mma(acc, a[0], a[1], a[2], a[3], b.x, b.y);
        mma(acc, a[4], a[5], a[6], a[7], b.z, b.w);
      } else {
        const uint4 v0 = w[s * 2];
        const uint4 v1 = w[s * 2 + 1];
        mma(acc, v0.x, v0.y, v0.z, v0.w, b.x, b.y);
        mma(acc, v1.x, v1.y, v1.z, v1.w, b.z, b.w);
      }
    }
  }
}

template <Format F, int STEPS>
__device__ __forceinline__ void wave_chunks(Context& c, const Matrix& m, int groups,
                                            std::uint32_t x, bool on, float (&acc)[4]) {
  // Copies: every wait makes the compiler forget what it knew of memory.
  const int lane = c.lane;
  const int slots = c.slots;
  const int chunks = m.chunks;
  const bool active = c.warp / m.parts < groups;
  const std::uint32_t ring = shared_address(c.ring) + c.warp * STEPS * m.tile_bytes;
  const std::uint32_t full = shared_address(c.s.full);
  const std::uint32_t empty = shared_address(c.s.empty);
  constexpr int kBytes = (F == Format::kMXFP4 ? 128 : 64) * STEPS;  // of x in a chunk
  x += c.warp % m.parts * m.part_cols * 2;
  int slot = c.slot;
  std::uint32_t phase = c.phase;
  for (int chunk = 0; chunk < chunks; ++chunk, x += kBytes) {
    while (!mbarrier_try(full + slot * 8, phase)) {
      if (c.s.abort != 0) return;
    }
    chunk_product<F, STEPS>(ring + slot * kSlotBytes, x, lane, empty + slot * 8, on, active, acc);
    next_slot(slots, slot, phase);
  }
  c.slot = slot;
  c.phase = phase;
}

// Power of two that undoes the decoders' and the activations' scaling.
__device__ __forceinline__ float post_factor(Format format) {
  switch (format) {
    case Format::kE4M3:
      return kPostE4M3;
    case Format::kMXFP4:
      return kPostE2M1;
    default:
      return kPostBF16;
  }
}

// Sums of this warp's part: rows lane/4 and lane/4 + 8 of its group, columns 2 (lane % 4) and one
// more; `x` is the staged row of column lane/4 plus 16 (lane % 4) bytes, `on` whether it has one.
__device__ __noinline__ float4 wave_product(Context& c, const Matrix& m, int groups,
                                            std::uint32_t x, bool on) {
  float acc[4] = {};
#define ML_STEPS(F, N)                           \
  case N:                                        \
    wave_chunks<F, N>(c, m, groups, x, on, acc); \
    break
  switch (m.format) {
    case Format::kE4M3:
      switch (m.steps) {
        ML_STEPS(Format::kE4M3, 1);
        ML_STEPS(Format::kE4M3, 2);
        ML_STEPS(Format::kE4M3, 3);
        ML_STEPS(Format::kE4M3, 4);
      }
      break;
    case Format::kMXFP4:
      switch (m.steps) {
        ML_STEPS(Format::kMXFP4, 1);
        ML_STEPS(Format::kMXFP4, 2);
        ML_STEPS(Format::kMXFP4, 3);
        ML_STEPS(Format::kMXFP4, 4);
      }
      break;
    default:
      switch (m.steps) {
        ML_STEPS(Format::kBF16, 1);
        ML_STEPS(Format::kBF16, 2);
      }
  }
#undef ML_STEPS
  const float post = post_factor(m.format);
  return {acc[0] * post, acc[1] * post, acc[2] * post, acc[3] * post};
}

// Adds parts in the fixed tree: ((0+1)+(2+3))+((4+5)+(6+7)), or the subtree a rank holds.
template <typename F>
__device__ __forceinline__ float add_parts(int parts, F&& part) {
  switch (parts) {
    case 1:
      return part(0);
    case 2:
      return part(0) + part(1);
    case 4:
      return (part(0) + part(1)) + (part(2) + part(3));
    default:
      return ((part(0) + part(1)) + (part(2) + part(3))) +
             ((part(4) + part(5)) + (part(6) + part(7)));
  }
}

// Sums of the wave in shared memory, visible to all warps afterwards.
__device__ __forceinline__ const float* publish(Context& c, float4 acc) {
  auto* red = reinterpret_cast<float4*>(c.s.scratch) + c.turn * kWarps * 32;
  c.turn ^= 1;
  red[c.warp * 32 + c.lane] = acc;
  sync(c);
  return reinterpret_cast<const float*>(red);
}
// Row i (0..15) of group g, column n: its parts' sum.
__device__ __forceinline__ float wave_sum(const float* red, int parts, int g, int i, int n) {
  const int at = ((i & 7) * 4 + n / 2) * 4 + (i >> 3) * 2 + (n & 1);
  return add_parts(parts, [&](int part) { return red[(g * parts + part) * 128 + at]; });
}

// Shared address of this lane's part of a staged row.
__device__ __forceinline__ std::uint32_t column(const Context& c, const Layout& layout, int row) {
  return shared_address(c.x) + row * layout.row_bytes + (c.lane & 3) * 16;
}

// y(row group, row in group, column, sum) for this block's share of the matrix, columns staged in
// rows 0..columns-1.
template <typename F>
__device__ __forceinline__ void share_product(Context& c, const Matrix& m, int columns, F&& y) {
  const Layout layout(m);
  const int n = c.lane >> 2;
  const Share mine(m.row_groups, c.block, c.blocks);
  const int step = wave_groups(m);
  for (int g = mine.begin; g < mine.end; g += step) {
    const int count = min(step, mine.end - g);
    const float4 acc = wave_product(c, m, count, column(c, layout, n), n < columns);
    const float* red = publish(c, acc);
    for (int i = c.thread; i < count * 128; i += kThreads) {
      const int at = i & 127;
      if ((at & 7) >= columns) continue;
      y(g + i / 128, at >> 3, at & 7, wave_sum(red, m.parts, i / 128, at >> 3, at & 7));
    }
  }
}

}  // namespace monolayer::cuda

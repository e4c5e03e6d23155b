// Matrix times up to eight activation columns: the inner loop of every projection.
//
// Warp w of a wave takes part w % parts of row group w / parts. Its sum is one chain over the tiles
// of that part in ascending order (MXFP4: per group of 32 columns a product sum, then one fma with
// the group's scale), so a column's bits depend on nothing but its own values. Parts are added in
// the fixed tree by whoever reads them.
#pragma once

#include "backend/cuda/device/context.cuh"

namespace monolayer::cuda {

// Byte offset of column c where parts are padded.
__device__ __noinline__ int padded_offset(int cols, int parts, int part_cols, int c) {
  const int units = (cols + 31) / 32;
  const int unit = c / 32;
  const int part = (parts * (unit + 1) + units - 1) / units - 1;
  return (part * part_cols + c - part * units / parts * 32) * 2;
}

// Where columns of K lie in a staged row: part by part, each padded to whole tiles.
struct Layout {
  int cols, parts, part_cols, row_bytes;
  __device__ explicit Layout(const Matrix& m)
      : cols(m.cols), parts(m.parts), part_cols(m.part_cols), row_bytes(m.row_bytes) {}
  __device__ bool padded() const { return parts * part_cols != cols; }
  // Byte offset of column c, a multiple of 8.
  __device__ int at(int c) const {
    return padded() ? padded_offset(cols, parts, part_cols, c) : c * 2;
  }
};

template <typename T>
__device__ __forceinline__ T load_shared(int offset) {
  return *reinterpret_cast<const T*>(memory + offset);
}

// One chunk: STEPS tiles of this warp's part; offsets into shared memory, `stride` from one group
// of 32 columns to the next. The slot is given back before the arithmetic.
template <Format F, int STEPS>
__device__ __forceinline__ void chunk_product(int tile, int x, int stride, int lane,
                                              std::uint32_t empty, bool active, float (&acc)[4]) {
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
        w[s * kLoads + l] = load_shared<uint4>(tile + s * kTile + l * 512 + lane * 16);
      }
      if (F == Format::kMXFP4) {
        scales[s] = load_shared<std::uint32_t>(tile + s * kTile + 512 + (lane >> 2) * 4);
      }
    }
  }
  __syncwarp();
  if (lane == 0) mbarrier_arrive(empty);
  if (!active) return;
  uint4 b[STEPS * kGroups];
#pragma unroll
  for (int i = 0; i < STEPS * kGroups; ++i) b[i] = load_shared<uint4>(x + i * stride);
#pragma unroll
  for (int i = 0; i < STEPS * kGroups; ++i) {
    const int s = i / kGroups;
    if constexpr (F == Format::kMXFP4) {
      const bool second = i % 2 != 0;
      float f[4];
      decode_scales(scales[s], f);
      std::uint32_t a0[4];
      std::uint32_t a1[4];
      decode_e2m1(second ? w[s].z : w[s].x, a0);
      decode_e2m1(second ? w[s].w : w[s].y, a1);
      float q[4] = {};
      mma(q, a0[0], a0[1], a0[2], a0[3], b[i].x, b[i].y);
      mma(q, a1[0], a1[1], a1[2], a1[3], b[i].z, b[i].w);
      const float low = second ? f[1] : f[0];
      const float high = second ? f[3] : f[2];
      acc[0] = fmaf(low, q[0], acc[0]);
      acc[1] = fmaf(low, q[1], acc[1]);
      acc[2] = fmaf(high, q[2], acc[2]);
      acc[3] = fmaf(high, q[3], acc[3]);
    } else if constexpr (F == Format::kE4M3) {
      std::uint32_t a[8];
      decode_e4m3(w[s].x, a[0], a[2]);
      decode_e4m3(w[s].y, a[1], a[3]);
      decode_e4m3(w[s].z, a[4], a[6]);
      decode_e4m3(w[s].w, a[5], a[7]);
      mma(acc, a[0], a[1], a[2], a[3], b[i].x, b[i].y);
      mma(acc, a[4], a[5], a[6], a[7], b[i].z, b[i].w);
    } else {
      const uint4 v0 = w[s * 2];
      const uint4 v1 = w[s * 2 + 1];
      mma(acc, v0.x, v0.y, v0.z, v0.w, b[i].x, b[i].y);
      mma(acc, v1.x, v1.y, v1.z, v1.w, b[i].z, b[i].w);
    }
  }
}

template <Format F, int STEPS>
__device__ __forceinline__ void wave_chunks(const Matrix& m, int groups, int x, bool on, int slot,
                                            std::uint32_t phase, float (&acc)[4]) {
  Shared& s = shared();
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int slots = s.params.slots;
  const int chunks = m.chunks;
  const bool active = warp >> m.log_parts < groups;
  const int ring = kFixedBytes + warp * STEPS * m.tile_bytes;
  const std::uint32_t full = shared_address(s.full);
  const std::uint32_t empty = shared_address(s.empty);
  constexpr int kGroupsAChunk = (F == Format::kMXFP4 ? 2 : 1) * STEPS;
  const int stride = on ? 64 : 0;
  x = on ? x + (warp & (m.parts - 1)) * m.part_cols * 2
         : static_cast<int>(reinterpret_cast<unsigned char*>(s.zero) - memory);
  for (int chunk = 0; chunk < chunks; ++chunk, x += kGroupsAChunk * stride) {
    while (!mbarrier_try(full + slot * 8, phase)) {
      if (s.abort != 0) return;
    }
    chunk_product<F, STEPS>(ring + slot * kSlotBytes, x, stride, lane, empty + slot * 8, active,
                            acc);
    next_slot(slots, slot, phase);
  }
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
__device__ __noinline__ float4 wave_product_at(const Matrix& m, int groups, int x, bool on,
                                               int slot, std::uint32_t phase) {
  float acc[4] = {};
#define ML_STEPS(F, N)                                     \
  case N:                                                  \
    wave_chunks<F, N>(m, groups, x, on, slot, phase, acc); \
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

__device__ __forceinline__ float4 wave_product(Context& c, const Matrix& m, int groups, int x,
                                               bool on) {
  const float4 acc = wave_product_at(m, groups, x, on, c.slot, c.phase);
  c.slot += m.chunks;
  while (c.slot >= c.slots) {
    c.slot -= c.slots;
    c.phase ^= 1;
  }
  return acc;
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

// Offset in shared memory of this lane's part of a staged row.
__device__ __forceinline__ int column(const Context& c, const Layout& layout, int row) {
  return static_cast<int>(c.x - memory) + row * layout.row_bytes + (c.lane & 3) * 16;
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

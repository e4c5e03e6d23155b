// Matrix times up to eight activation columns, or sixteen of FP8 projections: the inner loop of
// every projection.
//
// An item is one row group and one part of K (or a few short parts): one warp takes it out of the
// ring, so warps never wait for each other inside a product. A part's sum is a chain over its tiles
// in ascending order for MXFP4 and MXFP8 (per group of 32 columns a product sum, then one fma with
// the group's scale) and for BF16, and is two chains for FP8, the halves of each tile. So a
// column's bits depend on nothing but its own values. Parts are added in the fixed tree by whoever
// reads them.
#pragma once

#include "backend/cuda/device/tiles.cuh"
#include "backend/cuda/device/units.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

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
  std::uint32_t vectors_divider;
  __device__ explicit Layout(const Matrix& m)
      : cols(m.cols),
        parts(m.parts),
        part_cols(m.part_cols),
        row_bytes(m.row_bytes),
        vectors_divider(m.vectors_divider) {}
  __device__ bool padded() const { return !kM3Sizes && parts * part_cols != cols; }
  // Byte offset of column c, a multiple of 4.
  __device__ int at(int c) const {
    return padded() ? padded_offset(cols, parts, part_cols, c) : c * 2;
  }
  // Equal for layouts that put the columns of one width at the same places.
  __device__ int id() const { return padded() ? parts << 16 | part_cols : 0; }
};

// Where this lane's column is staged: offset in shared memory of its first 16 bytes, stride.
struct Column {
  int offset, stride;
  __device__ Column at(int bytes) const { return {stride != 0 ? offset + bytes : offset, stride}; }
};
// Two of them: columns lane/4 and lane/4 + 8.
struct WideColumn {
  Column low, high;
  __device__ WideColumn at(int bytes) const { return {low.at(bytes), high.at(bytes)}; }
};
struct WideSums {
  float4 low, high;
};

// Whether the copy that fills a slot for the `wraps`-th time has landed. Copies land in any order,
// and a barrier tells only even phases from odd ones: a warp that is ahead must not take the
// landing of the slot's last copy but one for its own, so it first asks whether its own is on its
// way.
__device__ __forceinline__ bool landed(int slot, std::uint32_t wraps) {
  const Shared& s = shared();
  const std::uint32_t issued = s.issued[slot];
  const bool whole = mbarrier_test(shared_address(&s.full[slot]), wraps & 1);
  return static_cast<std::int32_t>(issued - wraps) > 0 && whole;
}
// Until it has, or this block gave up: then nothing is used any more, but lanes stay together.
__device__ __forceinline__ void wait_landed(int slot, std::uint32_t wraps) {
  const Shared& s = shared();
  while (static_cast<std::int32_t>(s.issued[slot] - wraps) <= 0 && s.abort == 0) {
  }
  while (!mbarrier_try(shared_address(&s.full[slot]), wraps & 1) && s.abort == 0) {
  }
}

// Until the copy that fills a slot for the `wraps`-th time has been used, or this block gave up. A
// barrier tells only even phases from odd ones, but a later use needs a later copy; while the copy
// before is in use it does not wait at all.
__device__ __forceinline__ void wait_released(int slot, std::uint32_t wraps) {
  const Shared& s = shared();
  while (!mbarrier_test(shared_address(&s.empty[slot]), wraps & 1) &&
         static_cast<std::int32_t>(s.issued[slot] - wraps) <= 1 && s.abort == 0) {
  }
  __syncwarp();
}

// Sums of one part: rows lane/4 and lane/4 + 8 of its group, columns 2 (lane % 4) and one more. Its
// `tiles` begin `first` tiles into the slot and are `chunk_tiles` a slot, in slots `step` apart.
// `last`: the slots are given back. Apart, one copy a format: code has to be fetched.
template <int FORMAT>
__device__ __noinline__ float4 product(Format format, float x_scale, int tiles, int chunk_tiles,
                                       int first, bool last, Column x, int slot,
                                       std::uint32_t wraps, int step) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  Shared& s = shared();
  const int slots = s.params.slots;
  // Lane k asks for the k-th copy: most have landed long ago, and one by one each answer would have
  // to be waited for.
  std::uint32_t there = 0;
  {
    int own = slot + (lane & 3) * step;
    std::uint32_t own_wraps = wraps;
    wrap_slot(slots, own, own_wraps);
    there = __ballot_sync(0xFFFFFFFFU, landed(own, own_wraps)) & 15U;
    __syncwarp();  // what a lane has seen land is there for all
  }
  if constexpr (FORMAT >= 0) format = static_cast<Format>(FORMAT);
  const int planes = format == Format::kF32 ? 3 : 1;
  const auto is = [&](Format f) { return FORMAT != kUnscaled && format == f; };
  const int tile_bytes = is(Format::kMXFP4)                           ? 544
                         : is(Format::kMXFP8)                         ? 528
                         : is(Format::kE4M3) || is(Format::kE4M3Half) ? 512
                                                                      : 1024;
  float scaled[4] = {};
  float acc[2][4] = {};
  const int tile = kFixedBytes + first * tile_bytes + lane * 16;
  while (true) {
    if ((there & 1) == 0) wait_landed(slot, wraps);
    there >>= 1;
    const int n = min(tiles, chunk_tiles);
    const int at = tile + slot * kSlotBytes;
    if (is(Format::kMXFP4)) {
      tiles_mxfp4(at, at + 512 - lane * 16 + (lane >> 2) * 4, x.offset, x.stride, n, scaled);
      x.offset += 2 * n * x.stride;
    } else if (is(Format::kMXFP8)) {
      tiles_mxfp8(at, at + 512 - lane * 16 + (lane >> 2) * 2, x.offset, x.stride, n, scaled);
      x.offset += n * x.stride;
    } else if (is(Format::kE4M3Half)) {
      tiles_e4m3<true>(kSharedBase + at, kSharedBase + x.offset, x.stride, n, acc);
      x.offset += n * x.stride;
    } else if (is(Format::kE4M3)) {
      tiles_e4m3<false>(kSharedBase + at, kSharedBase + x.offset, x.stride, n, acc);
      x.offset += n * x.stride;
    } else {
      tiles_bf16(at, x.offset, x.stride, n, planes, acc[0]);
      x.offset += n / planes * x.stride;
    }
    tiles -= n;
    __syncwarp();
    if (last && lane == 0) mbarrier_arrive(&s.empty[slot]);
    if (tiles == 0) break;
    slot += step;
    wrap_slot(slots, slot, wraps);
  }
  if (is(Format::kMXFP4)) {
    return {scaled[0] * kPostE2M1, scaled[1] * kPostE2M1, scaled[2] * kPostE2M1,
            scaled[3] * kPostE2M1};
  }
  if (is(Format::kMXFP8)) {
    return {scaled[0] * kPostE4M3, scaled[1] * kPostE4M3, scaled[2] * kPostE4M3,
            scaled[3] * kPostE4M3};
  }
  const float post = is(Format::kE4M3Half) ? inverse_power(x_scale)
                     : is(Format::kE4M3)   ? kPostE4M3
                                           : kPostBF16;
  const auto sum = [&](int i) { return (acc[0][i] + acc[1][i]) * post; };
  return {sum(0), sum(1), sum(2), sum(3)};
}

// product() of both columns of a lane with a matrix of kE4M3Half, or, `BF16`, of kBF16.
template <bool BF16>
__device__ __noinline__ WideSums wide_product(float x_scale, int tiles, int chunk_tiles,
                                              WideColumn x, int slot, std::uint32_t wraps,
                                              int step) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  Shared& s = shared();
  float acc[2][2][4] = {};
  while (true) {
    if (!landed(slot, wraps)) wait_landed(slot, wraps);
    __syncwarp();
    const int n = min(tiles, chunk_tiles);
    const std::uint32_t tile = kSharedBase + kFixedBytes + lane * 16 + slot * kSlotBytes;
    if constexpr (BF16) {
      tiles_bf16_wide(tile, kSharedBase + x.low.offset, x.low.stride, kSharedBase + x.high.offset,
                      x.high.stride, n, acc);
    } else {
      tiles_e4m3_wide(tile, kSharedBase + x.low.offset, x.low.stride, kSharedBase + x.high.offset,
                      x.high.stride, n, acc);
    }
    x.low.offset += n * x.low.stride;
    x.high.offset += n * x.high.stride;
    tiles -= n;
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&s.empty[slot]);
    if (tiles == 0) break;
    slot += step;
    wrap_slot(s.params.slots, slot, wraps);
  }
  const float post = BF16 ? kPostBF16 : inverse_power(x_scale);
  const auto sum = [&](int k, int i) { return (acc[k][0][i] + acc[k][1][i]) * post; };
  return {{sum(0, 0), sum(0, 1), sum(0, 2), sum(0, 3)},
          {sum(1, 0), sum(1, 1), sum(1, 2), sum(1, 3)}};
}

// Part k of an item's.
template <typename K>
__device__ __forceinline__ float4 part_sums(const Matrix& m, int k, Column x, int slot,
                                            std::uint32_t wraps, int step) {
  return product<K::kFormat>(K::format(m), m.x_scale, K::tiles(m), K::chunk_tiles(m),
                             k * K::tiles(m), k + 1 == K::span(m), x, slot, wraps, step);
}
template <typename K>
__device__ __forceinline__ WideSums part_sums(const Matrix& m, int, WideColumn x, int slot,
                                              std::uint32_t wraps, int step) {
  constexpr bool kIsBF16 = K::kFormat == static_cast<int>(Format::kBF16);
  static_assert((kIsBF16 || K::kFormat == static_cast<int>(Format::kE4M3Half)) && K::kSpan == 1);
  return wide_product<kIsBF16>(m.x_scale, K::tiles(m), K::chunk_tiles(m), x, slot, wraps, step);
}

// Units [begin, begin + units) of a run (one batch of it, or all), an item a warp in turn.
// x_of(unit): the column this lane reads, or both, at part 0; store(unit, part, sums).
template <typename K, typename X, typename S>
__device__ __forceinline__ void item_products(Context& c, const Run& run, int begin, int units,
                                              X&& x_of, S&& store) {
  const Matrix& m = run.m;
  const int items = units << run.log_items;
  const int mask = (1 << run.log_items) - 1;
  const int round = c.p.round;
  const int mine = c.warp < round ? (c.warp - c.turn) & (round - 1) : kWarps;
#pragma unroll 1
  for (int base = 0; base < items; base += round) {
    const int n = min(round, items - base);
    if (mine < n) {
      int slot = c.slot + mine;
      std::uint32_t wraps = c.wraps;
      wrap_slot(c.slots, slot, wraps);
      const int item = base + mine;
      const int unit = begin + (item >> run.log_items);
      const int span = K::span(m);
      const int part = (item & mask) * span;
      const int part_bytes = m.part_cols * 2;
      auto x = x_of(unit).at(part * part_bytes);
#pragma unroll 1
      for (int k = 0; k < span; ++k, x = x.at(part_bytes))
        store(unit, part + k, part_sums<K>(m, k, x, slot, wraps, n));
    }
    c.slot += n * K::chunks(m);
    wrap_slot(c.slots, c.slot, c.wraps);
  }
  c.turn = (c.turn + items) & (round - 1);
}

// Offset in shared memory of what this lane reads of staged row `row`.
__device__ __forceinline__ int staged_row(const Context& c, int row_bytes, int row) {
  return static_cast<int>(c.x - memory()) + row * row_bytes + (c.lane & 3) * 16;
}
// This lane's column: that row, if `on`.
__device__ __forceinline__ Column column(const Context& c, int row_bytes, int row, bool on) {
  if (!on) return {static_cast<int>(c.s.zero - memory()), 0};
  return {staged_row(c, row_bytes, row), 64};
}

// Sums kept until all parts are there: half c.half, entry, row, column.
__device__ __forceinline__ float* red_half(const Context& c) {
  return c.red + c.half * (red_entries_of(c.p) * 16 * red_columns_of(c.p));
}
// `more`: added to what is kept.
__device__ __forceinline__ void keep_sums(const Context& c, float* red, int entry, float4 v,
                                          bool more = false) {
  const int width = red_columns_of(c.p);
  const int at = 2 * (c.lane & 3);
  if (at >= width) return;
  float* to = red + (entry * 16 + (c.lane >> 2)) * width + at;
  float2* const low = reinterpret_cast<float2*>(to);
  float2* const high = reinterpret_cast<float2*>(to + 8 * width);
  if (more) v = {low->x + v.x, low->y + v.y, high->x + v.z, high->y + v.w};
  *low = {v.x, v.y};
  *high = {v.z, v.w};
}

// Adds parts that consecutive lanes hold in the fixed tree: ((0+1)+(2+3))+((4+5)+(6+7)), or the
// subtree a rank holds. All lanes of the warp.
__device__ __forceinline__ float add_parts(int parts, float v) {
#pragma unroll 1
  for (int d = 1; d < parts; d <<= 1) v += __shfl_xor_sync(0xFFFFFFFFU, v, d);
  return v;
}

// The same of up to eight parts that lie `stride` floats apart, by one thread.
__device__ __forceinline__ float tree_of_parts(const float* from, int stride, int parts) {
  float v[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k] = k < parts ? from[k * stride] : 0.0F;
  float sum = v[0];
  if (parts > 1) sum += v[1];
  if (parts > 2) sum += v[2] + v[3];
  if (parts > 4) sum += (v[4] + v[5]) + (v[6] + v[7]);
  return sum;
}

// y(row group, row in group, column, sum) for this block's share of the matrix, columns staged in
// rows 0..columns-1: up to eight, or, `WIDE`, sixteen, whose sums lie in two entries.
template <typename K, bool WIDE, typename F>
__device__ __forceinline__ void share_product(Context& c, const Matrix& m, int columns, F&& y) {
  const int parts = m.parts;
  const int own = c.lane >> 2;
  const Run run = share_of(m, WIDE, c.block, c.blocks);
  const int width = red_columns_of(c.p);
  const int log_width = 31 - __clz(width) + (WIDE ? 1 : 0);
  const Column x = column(c, m.row_bytes, own, own < columns);
#pragma unroll 1
  for (int first = 0; first < run.units; first += run.batch) {
    const int count = min(run.batch, run.units - first);
    float* red = red_half(c);
    if constexpr (WIDE) {
      const WideColumn both{x, column(c, m.row_bytes, own + kColumns, own + kColumns < columns)};
      item_products<K>(
          c, run, first, count, [&](int) { return both; },
          [&](int unit, int part, const WideSums& v) {
            const int entry = (unit - first) * 2 * parts + part;
            keep_sums(c, red, entry, v.low);
            keep_sums(c, red, entry + parts, v.high);
          });
    } else {
      item_products<K>(
          c, run, first, count, [&](int) { return x; },
          [&](int unit, int part, float4 v) {
            keep_sums(c, red, (unit - first) * parts + part, v);
          });
    }
    sync(c);
    c.half ^= 1;
    const int total = count * 16 << log_width;
#pragma unroll 1
    for (int at = c.thread; at < total; at += kThreads) {
      const int row = at & 15;
      const int entries = at >> 4 >> 31 - __clz(width);  // of parts: groups, or their halves
      const int column_of = at >> 4 & ((1 << log_width) - 1);
      const int group = at >> 4 >> log_width;
      if (column_of >= columns) continue;
      const float sum =
          tree_of_parts(red + (entries * parts * 16 + row) * width + (column_of & (width - 1)),
                        16 * width, parts);
      y(run.begin + first + group, row, column_of, sum);
    }
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

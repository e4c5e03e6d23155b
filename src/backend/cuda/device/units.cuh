// Which work a block does, in which order: the one place that the feeding and the computing
// warps both ask, so that weights come out of the ring as they went in.
#pragma once

#include "backend/cuda/device/context.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// n / the divisor that `magic` is the divider() of.
__device__ __forceinline__ int over(int n, std::uint32_t magic) {
  return magic == 0 ? n : static_cast<int>(__umulhi(static_cast<std::uint32_t>(n), magic));
}
// divider() of what is two or three on a whole device; divisions are long.
__device__ __noinline__ std::uint32_t divider_of_some(int divisor) { return divider(divisor); }
__device__ __forceinline__ std::uint32_t divider_of_few(int divisor) {
  return divisor == 1   ? divider(1)
         : divisor == 2 ? divider(2)
         : divisor == 3 ? divider(3)
                        : divider_of_some(divisor);
}

// A run of units of one matrix, each a row group of some pass (or of the matrix alone). A pass is
// an expert with up to eight of its rows; or eight rows of a step; or, of items dealt out part by
// part, those parts.
struct Run {
  const Matrix& m;
  int units;
  int begin, step;      // unit i is number begin + i * step
  int per_pass;         // numbers of one pass
  std::uint32_t magic;  // divider() of per_pass
  int group;            // row group of a pass's first number
  int pass;             // pass of number 0; -1: numbers are row groups of the matrix alone
  int batch;            // units whose sums are kept at once; 0: all
  int log_items;        // items of a unit
  std::int64_t unit_bytes;

  struct Place {
    int pass, group;
  };
  __device__ Place place(int i) const {
    const int number = begin + i * step;
    if (pass < 0) return {-1, number};
    const int which = over(number, magic);
    return {pass + which, group + number - which * per_pass};
  }
};

// Row groups whose sums shared memory holds at once.
__device__ __forceinline__ int groups_at_once(const Matrix& m) {
  return max(1, red_entries_of(shared().params) / m.parts);
}
// Sums of a row group of gate and up that are kept and added in the tree, and its items:
// MiniMax-M3's kernels make one of each item, whatever parts the matrix says belong to one.
__device__ __forceinline__ int gate_up_sums(const Matrix& m) {
  return kM3 ? 8 / GateUpKind::kSpan : m.parts;
}
__device__ __forceinline__ int gate_up_log_items(const Matrix& m) {
  return kM3 ? 31 - __clz(gate_up_sums(m)) : m.log_items;
}

// Whether projections may take all rows of a step of more than kColumns in one pass.
inline constexpr bool kMayBeWide = kM3Sizes && !kOnePass;
// Whether the output projection does: if shared memory holds their activations.
__device__ __forceinline__ bool output_is_wide(const Matrix& m, int rows) {
  return kMayBeWide && rows > kColumns && rows * m.row_bytes <= shared().params.x_bytes;
}
// This block's row groups of a matrix. `wide`: for sixteen columns, so half as many groups at once.
__device__ __forceinline__ Run share_of(const Matrix& m, bool wide, int block, int blocks) {
  const Share mine(m.row_groups, block, blocks);
  const int batch = wide ? max(1, groups_at_once(m) / 2) : groups_at_once(m);
  return {m, mine.count(), mine.begin, 1, 1, 0, 0, -1, batch, m.log_items, m.group_bytes};
}
// Whether all rows of a step meet a matrix in one pass over it though shared memory does not hold
// their activations: half of its K, then the other half.
inline constexpr bool kByHalves = kDenseM3 && !kOnePass;
inline constexpr int kHalfParts = kProjectionParts / 2;
__device__ __forceinline__ bool is_by_halves(int rows) { return kByHalves && rows > kColumns; }
// One half of this block's row groups: that is the pass.
__device__ __forceinline__ Run half_share_of(const Matrix& m, int half, int block, int blocks) {
  constexpr int kEntries = 2 * kHalfParts;  // sums of a row group, eight columns each
  const Share mine(m.row_groups, block, blocks);
  return {m,
          mine.count(),
          mine.begin,
          1,
          m.row_groups,
          m.groups_divider,
          0,
          half,
          2 * red_entries(kMaxRows) / kEntries,
          31 - __clz(kHalfParts),
          m.group_bytes};
}
__device__ __forceinline__ std::int64_t bytes_of_item(const Matrix& m) {
  return static_cast<std::int64_t>(m.span) * m.tiles * m.tile_bytes;
}
// This block's items of a matrix, whatever row group they belong to: row group by row group, or
// part by part, so that a block meets few parts.
__device__ __forceinline__ Run items_of(const Matrix& m, bool by_part, int block, int blocks) {
  const Share mine(m.row_groups << m.log_items, block, blocks);
  return {m,
          mine.count(),
          mine.begin,
          1,
          by_part ? m.row_groups : 1,
          by_part ? m.groups_divider : 0,
          0,
          by_part ? 0 : -1,
          0,
          0,
          by_part ? m.group_bytes : bytes_of_item(m)};
}

// Units (pass, row group) of gate and up projections, for passes [first, end). Up to eight rows:
// dealt out one by one, the routed ones where the shared ones stopped. Beyond, activations of all
// rows do not fit in shared memory: contiguous, so that a block serves few experts, one run a pass.
template <typename F>
__device__ __forceinline__ void gate_up_runs(const Matrix& m, int first, int end, int offset,
                                             int rows, int block, int blocks, F&& f) {
  const int total = (end - first) * m.row_groups;
  const bool dealt = kOnePass || rows <= kColumns;
  const Share mine(total, block, blocks);
  int begin = mine.begin;
  int stop = mine.end;
  int step = 1;
  const std::uint32_t magic = m.groups_divider;
  if (dealt) {
    begin = block - (offset - over_blocks(offset) * blocks);
    if (begin < 0) begin += blocks;
    stop = total;
    step = blocks;
  }
#pragma unroll 1
  while (begin < stop) {
    const int pass = over(begin, magic);
    const int next = dealt ? stop : min(stop, (pass + 1) * m.row_groups);
    const int units = dealt ? over_blocks(next - begin + blocks - 1) : next - begin;
    f(Run{m, units, begin, step, m.row_groups, magic, 0, first, max(1, kWarps / gate_up_sums(m)),
          gate_up_log_items(m), m.group_bytes});
    begin = next;
  }
}

// The down projection adds routed experts by ascending id, then the shared one; passes hold the
// shared expert's first.
__device__ __forceinline__ int down_pass(const Table& t, int i) {
  const int routed = t.passes - t.shared_passes;
  return i < routed ? t.shared_passes + i : i - routed;
}

// The down projection's batches: some row groups, as many as there is room for the sums of, times
// some passes, as many as what that leaves of x holds activations of; all passes, then the next row
// groups. The sums lie at the end of shared memory.
struct DownBatch {
  int group, groups;
  int first, end;            // passes, in the order of down_pass
  int first_slot, end_slot;  // their slots
  int sums;                  // bytes, from the end of shared memory
  bool complete;             // the last of its row groups
  // Units of the routed experts (part 0) and of the shared one (1): row groups of a pass together.
  __device__ Run run(const Layer& layer, const Table& t, int part) const {
    const int routed = t.passes - t.shared_passes;
    const int begin = part == 0 ? first : max(first, routed);
    const int stop = part == 0 ? min(end, routed) : end;
    const Matrix& m = part == 0 ? layer.down : layer.shared_down;
    return {m,
            max(0, stop - begin) * groups,
            0,
            1,
            groups,
            divider_of_few(groups),
            group,
            part == 0 ? t.shared_passes + begin : begin - routed,
            0,
            m.log_items,
            m.group_bytes};
  }
};
// Row groups whose sums meet at once in the fused kernel for one row, whose experts all do.
__device__ __forceinline__ int down_groups_of_row(const Params& p, const Layer& layer,
                                                  const Table& t) {
  const int sums = 2 * red_entries_of(p) * red_columns_of(p) >> 31 - __clz(layer.down.parts);
  return sums / t.slots;
}
// All lanes of a warp.
template <typename F>
__device__ __forceinline__ void down_batches(const Params& p, const Layer& layer, const Table& t,
                                             int lane, int block, int blocks, F&& f) {
  const Share mine(layer.down.row_groups, block, blocks);
  if (mine.count() == 0) return;
  const int row_bytes = max(layer.down.row_bytes, layer.shared_down.row_bytes);
  const int passes = t.passes;
  const int slots = t.slots;
  const int of_group = slots * layer.down.parts * kDownSums;
  const int room = p.x_bytes + 2 * red_entries_of(p) * 16 * red_columns_of(p) * 4;
  const int least = min(kColumns, rows_of(shared().step)) * row_bytes;
  int together = mine.count();  // a few; as many as there is room for
#pragma unroll 1
  while (together > 1 && together * of_group > room - least) --together;
  const auto end_of = [&](int i) {
    const int pass = down_pass(t, i);
    return t.first[pass] + t.count[pass];
  };
#pragma unroll 1
  for (int g = mine.begin; g < mine.end; g += together) {
    const int groups = min(together, mine.end - g);
    const int sums = groups * of_group;
    // What activations may take.
    const int bytes = min(p.x_bytes, room - sums);
    const auto fit = [&](int n) { return n * row_bytes <= bytes; };
    int slot = 0;
#pragma unroll 1
    for (int i = 0; i < passes;) {
      const int first = i;
      const int first_slot = slot;
      if (fit(slots - first_slot)) {
        i = passes;
        slot = slots;
      } else {
        // Up to the first pass that no longer fits; the first one always does.
        std::uint32_t too_many = 0;
#pragma unroll 1
        for (; too_many == 0 && i < passes; i += 32) {
          too_many =
              __ballot_sync(0xFFFFFFFFU, i + lane < passes && !fit(end_of(i + lane) - first_slot));
        }
        i = too_many != 0 ? i - 32 + __ffs(static_cast<int>(too_many)) - 1 : passes;
        slot = end_of(i - 1);
      }
      f(DownBatch{g, groups, first, i, first_slot, slot, sums, i == passes});
    }
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

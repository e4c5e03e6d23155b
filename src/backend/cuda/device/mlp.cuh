// Output projection, router, experts and head of one layer.
#pragma once

#include "backend/cuda/device/feed.cuh"
#include "backend/cuda/device/rows.cuh"

namespace monolayer::cuda {

__device__ __forceinline__ float value_of(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
__device__ __forceinline__ float load_bf16(const std::uint16_t* p) { return value_of(__ldcg(p)); }
__device__ __forceinline__ std::uint16_t to_bf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ __forceinline__ float row_factor(const float* scales, int row) {
  return scales != nullptr ? __ldg(scales + row) : 1.0F;
}

__device__ __forceinline__ void embed_stage(Context& c) {
  const int vectors = c.p.shape.hidden / 8;
  for (int i = c.block * kThreads + c.thread; i < c.step().rows * vectors;
       i += c.blocks * kThreads) {
    const int row = i / vectors;
    reinterpret_cast<uint4*>(c.p.hidden)[i] =
        __ldg(reinterpret_cast<const uint4*>(c.p.embed) +
              static_cast<std::int64_t>(c.step().token[row]) * vectors + i % vectors);
  }
}

__device__ __forceinline__ void qkv_stage(Context& c) {
  const Matrix& m = c.layer().qkv;
  const Layout layout(m);
  for (int first = 0; first < c.step().rows; first += kColumns) {
    const int n = min(kColumns, c.step().rows - first);
    stage_norm(c, m, c.p.hidden, c.layer().input_norm, n, Rows{first, nullptr}, nullptr);
    share_product(c, m, n, [&](int group, int i, int column, float sum) {
      const int out = group * 16 + i;
      if (out >= c.p.shape.projected) return;
      c.p.projected[static_cast<std::int64_t>(first + column) * c.p.shape.projected + out] =
          sum * row_factor(m.row_scale, out);
    });
  }
}

// hidden + BF16(sum), rounded: the stream after attention.
__device__ __forceinline__ void output_stage(Context& c) {
  const Matrix& m = c.layer().o;
  const Layout layout(m);
  const int hidden = c.p.shape.hidden;
  for (int first = 0; first < c.step().rows; first += kColumns) {
    const int n = min(kColumns, c.step().rows - first);
    sync(c);
    clear_rows(c.x, layout, n);
    stage_rows(c, layout, 0, n,
               [&](int r) { return c.p.attended + static_cast<std::int64_t>(first + r) * m.cols; });
    sync(c);
    share_product(c, m, n, [&](int group, int i, int column, float sum) {
      const int out = group * 16 + i;
      if (out >= hidden) return;
      const std::int64_t at = static_cast<std::int64_t>(first + column) * hidden + out;
      c.p.middle[at] =
          to_bf16(load_bf16(c.p.hidden + at) + round_bf16(sum * row_factor(m.row_scale, out)));
    });
  }
}

// Partial logits of this block's (row group, part) items; warp w takes every eighth tile.
__device__ __forceinline__ void router_stage(Context& c) {
  const Matrix& m = c.layer().router;
  const Layout layout(m);
  const int tiles = m.chunks * m.steps;
  const int planes = m.format == Format::kF32 ? 3 : 1;
  const Share mine(m.row_groups * m.parts, c.block, c.blocks);
  for (int first = 0; first < c.step().rows; first += kColumns) {
    const int n = min(kColumns, c.step().rows - first);
    stage_norm(c, m, c.p.middle, c.layer().post_norm, n, Rows{first, nullptr}, nullptr);
    const int own = c.lane >> 2;
    for (int item = mine.begin; item < mine.end; ++item) {
      const int part = item % m.parts;
      const bool on = own < n;
      const int x = on ? column(c, layout, own) + part * m.part_cols * 2
                       : static_cast<int>(c.s.zero - memory);
      float acc[4] = {};
      for (int base = 0; base < tiles; base += kRouterChunk) {
        wait(c, &c.s.full[c.slot], c.phase);  // after giving up nothing is used any more
        const int end = min(kRouterChunk, tiles - base);
        uint4 w[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int tile = c.warp + i * kWarps;
          if (tile >= end) continue;
          const int from = kFixedBytes + c.slot * kSlotBytes + tile * 1024 + c.lane * 16;
          w[2 * i] = load_shared<uint4>(from);
          w[2 * i + 1] = load_shared<uint4>(from + 512);
        }
        __syncwarp();
        if (c.lane == 0) mbarrier_arrive(&c.s.empty[c.slot]);
        next_slot(c.slots, c.slot, c.phase);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int tile = c.warp + i * kWarps;
          if (tile >= end) continue;
          const uint4 b = load_shared<uint4>(x + (on ? (base + tile) / planes * 64 : 0));
          mma(acc, w[2 * i].x, w[2 * i].y, w[2 * i].z, w[2 * i].w, b.x, b.y);
          mma(acc, w[2 * i + 1].x, w[2 * i + 1].y, w[2 * i + 1].z, w[2 * i + 1].w, b.z, b.w);
        }
      }
      const float* red = publish(
          c, {acc[0] * kPostBF16, acc[1] * kPostBF16, acc[2] * kPostBF16, acc[3] * kPostBF16});
      if (c.thread < 128 && (c.thread & 7) < n) {
        const int row = first + (c.thread & 7);
        const int i = c.thread >> 3;
        c.p.router[(static_cast<std::int64_t>(part) * kMaxRows + row) * 16 * m.row_groups +
                   item / m.parts * 16 + i] = wave_sum(red, kWarps, 0, i, c.thread & 7);
      }
    }
  }
  if (c.step().rows <= kColumns) c.staged = m.part_cols;
}

// Top experts of one row by one warp: sigmoid scores, choice by score plus bias, the lower id
// among equals, weights renormalised over the chosen ones in ascending order.
__device__ __forceinline__ void route_row(Context& c, int row) {
  const Shape& s = c.p.shape;
  const Matrix& m = c.layer().router;
  float score[4];
  std::uint32_t order[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int e = c.lane + 32 * i;
    score[i] = 0;
    order[i] = 0;
    if (e >= s.experts) continue;
    const float logit = add_parts(m.parts, [&](int part) {
      return load_l2(c.p.router +
                     (static_cast<std::int64_t>(part) * kMaxRows + row) * 16 * m.row_groups + e);
    });
    score[i] = sigmoid(logit);
    const float biased =
        score[i] + (c.layer().router_bias != nullptr ? __ldg(c.layer().router_bias + e) : 0.0F);
    const std::uint32_t bits = __float_as_uint(biased + 0.0F);
    order[i] = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
    if (biased != biased) order[i] = 1;  // a NaN is taken last
  }
  int own_id = kMaxExperts;  // lane k holds the k-th choice
  float own_weight = 0;
#pragma unroll 1
  for (int k = 0; k < s.chosen; ++k) {
    const std::uint32_t best =
        __reduce_max_sync(0xFFFFFFFFU, max(max(order[0], order[1]), max(order[2], order[3])));
    std::uint32_t id = 0xFFFFFFFFU;
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      if (order[i] == best) id = static_cast<std::uint32_t>(c.lane + 32 * i);
    }
    id = __reduce_min_sync(0xFFFFFFFFU, id);
    float mine = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (static_cast<std::uint32_t>(c.lane + 32 * i) != id) continue;
      mine = score[i];
      order[i] = 0;
    }
    mine = __shfl_sync(0xFFFFFFFFU, mine, static_cast<int>(id & 31));
    if (c.lane == k) {
      own_id = static_cast<int>(id);
      own_weight = mine;
    }
  }
  // Ascending ids: the rank of each choice, then the sum in that order.
  int rank = 0;
#pragma unroll 1
  for (int k = 0; k < s.chosen; ++k) rank += __shfl_sync(0xFFFFFFFFU, own_id, k) < own_id ? 1 : 0;
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < s.chosen; ++k) {
    const unsigned holder = __ballot_sync(0xFFFFFFFFU, c.lane < s.chosen && rank == k);
    sum += __shfl_sync(0xFFFFFFFFU, own_weight, __ffs(static_cast<int>(holder)) - 1);
  }
  if (c.lane < s.chosen) {
    c.s.table.chosen[row][rank] = own_id;
    c.s.route_weight[row][rank] = s.routed_scale * __fdiv_rn(own_weight, sum);
  }
}

// Fills the table of this layer's experts and hands it to the feeding warp.
__device__ __forceinline__ void build_table(Context& c) {
  const int rows = c.step().rows;
  const int chosen = c.p.shape.chosen;
  const bool moe = c.layer().moe != 0;
  const bool shared = c.layer().shared_gate_up.row_groups > 0;
  Table& t = c.s.table;
  sync(c);
  if (moe) {
    for (int row = c.warp; row < rows; row += kWarps) route_row(c, row);
  }
  const int slots = shared ? rows : 0;
  const int shared_passes = shared ? passes(rows) : 0;
  if (c.thread < slots) {
    t.slot_row[c.thread] = c.thread;
    t.slot_weight[c.thread] = 1.0F;
  }
  if (c.thread < shared_passes) {
    t.expert[c.thread] = -1;
    t.first[c.thread] = static_cast<std::int16_t>(c.thread * kColumns);
    t.count[c.thread] = static_cast<std::int16_t>(min(kColumns, rows - c.thread * kColumns));
  }
  if (!moe) {
    if (c.thread == 0) {
      t.shared_passes = t.passes = shared_passes;
      t.slots = slots;
    }
    sync(c);
  } else {
    sync(c);
    if (c.thread < kMaxExperts) {
      int count = 0;
      for (int i = 0; i < rows; ++i) {
        for (int k = 0; k < chosen; ++k) count += t.chosen[i][k] == c.thread ? 1 : 0;
      }
      c.s.count[c.thread] = count;
    }
    sync(c);
    if (c.warp == 0) {
      int count[4];
      int own = 0;  // slots, and passes above bit 16
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        count[i] = c.s.count[c.lane * 4 + i];
        own += count[i] | passes(count[i]) << 16;
      }
      int before = own;
#pragma unroll
      for (int d = 1; d < 32; d <<= 1) {
        const int other = __shfl_up_sync(0xFFFFFFFFU, before, d);
        if (c.lane >= d) before += other;
      }
      const int total = __shfl_sync(0xFFFFFFFFU, before, 31);
      before -= own;
      int slot = slots + (before & 0xFFFF);
      int pass = shared_passes + (before >> 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (count[i] == 0) continue;
        for (int first = 0; first < count[i]; first += kColumns, ++pass) {
          t.expert[pass] = static_cast<std::int16_t>(c.lane * 4 + i);
          t.first[pass] = static_cast<std::int16_t>(slot + first);
          t.count[pass] = static_cast<std::int16_t>(min(kColumns, count[i] - first));
        }
        for (int row = 0; row < rows; ++row) {
          for (int k = 0; k < chosen; ++k) {
            if (t.chosen[row][k] != c.lane * 4 + i) continue;
            t.slot_row[slot] = row;
            t.slot_weight[slot++] = c.s.route_weight[row][k];
          }
        }
      }
      if (c.lane == 0) {
        t.shared_passes = shared_passes;
        t.passes = shared_passes + (total >> 16);
        t.slots = slots + (total & 0xFFFF);
      }
    }
    sync(c);
  }
  if (c.thread == 0) mbarrier_arrive(&c.s.routed);
}

// Eight columns of an expert's activation for the slots of a pass, from the sums of a wave.
__device__ __noinline__ void activate(const float* red, int parts, const float* scales, int group,
                                      int first, int count) {
  const Params& p = shared().params;
  const Shape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int n = thread & 7;
  const int j = thread >> 3;
  if (thread >= 64 || n >= count) return;
  const float gate = wave_sum(red, parts, 0, j, n) * row_factor(scales, group * 16 + j);
  const float up = wave_sum(red, parts, 0, j + 8, n) * row_factor(scales, group * 16 + j + 8);
  const float g = s.limit < gate ? s.limit : gate;
  float u = s.limit < up ? s.limit : up;
  u = u < -s.limit ? -s.limit : u;
  p.mid[static_cast<std::int64_t>(first + n) * s.mid_width + group * 8 + j] =
      to_bf16((g * sigmoid(s.alpha * g)) * (u + s.beta));
}
__device__ __forceinline__ void gate_up_unit(Context& c, const Matrix& m, int x,
                                             const float* scales, int group, int first, int count) {
  const float4 acc = wave_product(c, m, 1, x, (c.lane >> 2) < count);
  activate(publish(c, acc), m.parts, scales, group, first, count);
}

__device__ __forceinline__ void gate_up_stage(Context& c) {
  const Layer& layer = c.layer();
  const int rows = c.step().rows;
  const int own = c.lane >> 2;
  build_table(c);
  const Table& t = c.s.table;
  const auto stage = [&](const Matrix& m, int n, Rows row_of) {
    stage_norm(c, m, c.p.middle, layer.post_norm, n, row_of, nullptr);
    c.staged = rows <= kColumns ? m.part_cols : 0;
  };
  if (t.shared_passes > 0) {
    const Matrix& m = layer.shared_gate_up;
    const Layout layout(m);
    for (int pass = 0; pass < t.shared_passes; ++pass) {
      const int first = pass * kColumns;
      const int count = t.count[pass];
      if (c.staged != m.part_cols) stage(m, count, Rows{first, nullptr});
      for (int group = c.block; group < m.row_groups; group += c.blocks) {
        gate_up_unit(c, m, column(c, layout, own), m.row_scale, group, first, count);
      }
    }
  }
  if (layer.moe != 0) {
    const Matrix& m = layer.gate_up;
    const Layout layout(m);
    const int total = (t.passes - t.shared_passes) * m.row_groups;
    int staged_pass = -1;
    if (rows <= kColumns && c.staged != m.part_cols) stage(m, rows, Rows{0, nullptr});
    Feed::for_units_of(
        total, layer.shared_gate_up.row_groups, rows, c.block, c.blocks, [&](int unit) {
          const int pass = t.shared_passes + unit / m.row_groups;
          const int first = t.first[pass];
          const int count = t.count[pass];
          int row = own < count ? t.slot_row[first + own] : 0;
          if (rows > kColumns) {
            if (staged_pass != pass) stage(m, count, Rows{first, t.slot_row});
            staged_pass = pass;
            row = own;
          }
          const float* scales =
              m.row_scale != nullptr ? m.row_scale + t.expert[pass] * 16 * m.row_groups : nullptr;
          gate_up_unit(c, m, column(c, layout, row), scales, unit % m.row_groups, first, count);
        });
  }
  c.staged = 0;
  if (c.block == 0) {
    for (int i = c.thread; i < static_cast<int>(sizeof(Table) / 4); i += kThreads) {
      reinterpret_cast<std::uint32_t*>(c.p.table)[i] =
          reinterpret_cast<const std::uint32_t*>(&c.s.table)[i];
    }
  }
}

// The table that another launch built.
__device__ __forceinline__ void load_table(Context& c) {
  for (int i = c.thread; i < static_cast<int>(sizeof(Table) / 4); i += kThreads) {
    reinterpret_cast<std::uint32_t*>(&c.s.table)[i] =
        __ldcg(reinterpret_cast<const std::uint32_t*>(c.p.table) + i);
  }
  sync(c);
  if (c.thread == 0) mbarrier_arrive(&c.s.routed);
}

// Sums over a row's experts, eighth by eighth, then the tree, one rounding, and the residual.
__device__ __forceinline__ void down_stage(Context& c) {
  const Layer& layer = c.layer();
  const Table& t = c.s.table;
  const int rows = c.step().rows;
  const int hidden = c.p.shape.hidden;
  const int own = c.lane >> 2;
  const Matrix& shape = layer.moe != 0 ? layer.down : layer.shared_down;
  const int parts = shape.parts;
  const Share mine(shape.row_groups, c.block, c.blocks);
  const int step = wave_groups(shape);
  float* sums = reinterpret_cast<float*>(c.s.scratch + kRedBytes);  // [warp][row][16]
  float* acc = sums + c.warp * kMaxRows * 16;
  const int largest = max(Layout(layer.moe != 0 ? layer.down : layer.shared_down).row_bytes,
                          Layout(layer.shared_down).row_bytes);
  const int capacity = c.p.x_bytes / largest;
  for (int g = mine.begin; g < mine.end; g += step) {
    const int count = min(step, mine.end - g);
    sync(c);
    for (int i = c.lane; i < rows * 16; i += 32) acc[i] = 0;
    int staged_to = 0;
    int row = 0;  // first staged row of a pass
    for (int i = 0; i < t.passes; ++i) {
      if (i == staged_to) {
        sync(c);
        for (row = 0; staged_to < t.passes; ++staged_to) {
          const int pass = Feed::down_pass(t, staged_to);
          const int n = t.count[pass];
          if (row + n > capacity) break;
          const Matrix& m = t.expert[pass] < 0 ? layer.shared_down : layer.down;
          const Layout layout(m);
          if (layout.padded()) {
            for (int k = c.thread; k < n * layout.row_bytes / 16; k += kThreads) {
              reinterpret_cast<uint4*>(c.x + row * layout.row_bytes)[k] = {0, 0, 0, 0};
            }
            sync(c);
          }
          const int first = t.first[pass];
          stage_rows(c, layout, row, n, [&](int r) {
            return c.p.mid + static_cast<std::int64_t>(first + r) * c.p.shape.mid_width;
          });
          row += n;
        }
        row = 0;
        sync(c);
      }
      const int pass = Feed::down_pass(t, i);
      const int expert = t.expert[pass];
      const int n = t.count[pass];
      const Matrix& m = expert < 0 ? layer.shared_down : layer.down;
      const Layout layout(m);
      const float4 product = wave_product(c, m, count, column(c, layout, row + own), own < n);
      row += n;
      if ((c.warp >> m.log_parts) >= count) continue;
      const float* scales = m.row_scale;
      if (scales != nullptr && expert > 0) scales += expert * 16 * m.row_groups;
      const int out = (g + (c.warp >> m.log_parts)) * 16 + own;
      const float low = row_factor(scales, out);
      const float high = row_factor(scales, out + 8);
      const float value[4] = {product.x * low, product.y * low, product.z * high, product.w * high};
      __syncwarp();
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int column_of = 2 * (c.lane & 3) + k;
        if (column_of >= n) continue;
        const int slot = t.first[pass] + column_of;
        const float weight = t.slot_weight[slot];
        float* to = acc + t.slot_row[slot] * 16 + own;
        to[0] = fmaf(weight, value[k], to[0]);
        to[8] = fmaf(weight, value[2 + k], to[8]);
      }
    }
    sync(c);
    const int width = count * 16;
    for (int i = c.thread; i < rows * width; i += kThreads) {
      const int r = i / width;
      const int at = i % width;
      const int out = g * 16 + at;
      if (out >= hidden) continue;
      const float sum = add_parts(parts, [&](int part) {
        return sums[((at / 16 * parts + part) * kMaxRows + r) * 16 + at % 16];
      });
      const std::int64_t place = static_cast<std::int64_t>(r) * hidden + out;
      c.p.hidden[place] = to_bf16(load_bf16(c.p.middle + place) + round_bf16(sum));
    }
  }
}

__device__ __forceinline__ void head_stage(Context& c) {
  const Matrix& m = c.p.lm_head;
  const Layout layout(m);
  const int n_all = c.step().logit_rows;
  for (int first = 0; first < n_all; first += kColumns) {
    const int n = min(kColumns, n_all - first);
    stage_norm(c, m, c.p.hidden, c.p.final_norm, n, Rows{first, c.step().logit_row},
               c.block == 0 ? c.p.normed : nullptr);
    share_product(c, m, n, [&](int group, int i, int column, float sum) {
      const int out = group * 16 + i;
      if (out >= c.p.shape.vocab) return;
      c.p.logits[static_cast<std::int64_t>(first + column) * c.p.shape.vocab + out] =
          sum * row_factor(m.row_scale, out);
    });
  }
}

}  // namespace monolayer::cuda

// Experts of one layer: gate and up with the activation, and down.
#pragma once

#include "backend/cuda/device/expert_products.cuh"
#include "backend/cuda/device/halves.cuh"
#include "backend/cuda/device/projections.cuh"
#include "backend/cuda/device/route_beside.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// A batch's outputs are few: the warps that make them change from batch to batch, so that the
// others go on. The number of this thread among theirs.
__device__ __forceinline__ int activating_thread(const Context& c, std::uint32_t batch) {
  constexpr std::uint32_t kTogether = 4;
  return static_cast<int>(static_cast<std::uint32_t>(c.warp) - batch * kTogether & kWarps - 1) *
             32 +
         c.lane;
}

// The activation of gate and up, as products with down take it.
__device__ __forceinline__ std::uint16_t activated(const Shape& s, const Layer& layer, float gate,
                                                   float up) {
  const float g = s.limit < gate ? s.limit : gate;
  float u = s.limit < up ? s.limit : up;
  u = u < -s.limit ? -s.limit : u;
  const float value = (g * sigmoid(s.alpha * g)) * (u + s.beta);
  const bool half =
      kDenseM3 || (!has_experts(layer) && layer.shared_down.format == Format::kE4M3Half);
  return half ? scaled_half(value, layer.shared_down.x_scale) : scaled_bf16(value);
}

// Those of `units` units, first.. of a run, from sums that `red` holds; by threads `thread` and on.
// `WORDS`: as words.
template <bool WORDS>
__device__ __forceinline__ void activate(const Context& c, const Run& run, int first, int units,
                                         int log_columns, const float* red, int thread) {
  const Matrix& m = run.m;
  const Table& t = c.s.table;
  const int parts = gate_up_sums(m);
  const int width = red_columns_of(c.p);
  const int total = units * 8 << log_columns;
  const bool stalled = WORDS && is_stalled(kGateUp);
#pragma unroll 1
  for (int i = thread; i < total; i += kThreads) {
    const int j = i & 7;
    const int column_of = i >> 3 & ((1 << log_columns) - 1);
    const int k = i >> 3 >> log_columns;
    const Run::Place place = run.place(first + k);
    if (column_of >= t.count[place.pass]) continue;
    const float* from = red + (k * parts * 16 + j) * width + column_of;
    float gate = tree_of_parts(from, 16 * width, parts);
    float up = tree_of_parts(from + 8 * width, 16 * width, parts);
    if (kDenseM3 || (!kM3 && m.row_scale != nullptr)) {
      const int expert = kDenseM3 ? 0 : max(t.expert[place.pass], 0);
      const float* scales = m.row_scale + (expert * m.row_groups + place.group) * 16 + j;
      gate *= __ldg(scales);
      up *= __ldg(scales + 8);
    }
    const int slot = t.first[place.pass] + column_of;
    const int at = place.group * 8 + j;
    const std::uint16_t value = activated(c.p.shape, c.layer(), gate, up);
    if constexpr (WORDS) {
      if (!stalled)
        hand_over_four(words_at(kMidWords) + (slot * c.layer().down.cols + at) / 4, value,
                       tag_of(c));
    } else {
      c.p.mid[static_cast<std::int64_t>(slot) * c.p.shape.mid_width + at] = value;
    }
  }
}

// Sums of gate and up, batch by batch in two halves: where they lie; until all warps
// have stored them (red_done) or taken them (red_free); this warp has.
__device__ __forceinline__ float* red_of(const Context& c, std::uint32_t batch) {
  return c.red + (batch & 1) * (red_entries_of(c.p) * 16 * red_columns_of(c.p));
}
__device__ __forceinline__ void wait_batch(const Context& c, std::uint64_t (&barriers)[2],
                                           std::uint32_t batch) {
  while (!mbarrier_try(&barriers[batch & 1], batch >> 1 & 1)) {
    if (c.s.abort != 0) break;
  }
}
__device__ __forceinline__ void arrive_batch(const Context& c, std::uint64_t (&barriers)[2],
                                             std::uint32_t batch) {
  __syncwarp();
  if (c.lane == 0) mbarrier_arrive(&barriers[batch & 1]);
}

// Sums of gate and up, then the activation, for a run of units. products(first, units, store) makes
// sums of some and calls store(which of them, part, sums) for each: what comes above part 0 is
// added to it. outputs(first, units, red, wait) takes them after wait(), one batch late: sums of
// two batches lie side by side. So warps wait for the slowest of a batch only if they make its
// outputs, and for those of the batch before last before they store.
template <typename P, typename O>
__device__ __forceinline__ void gate_up_batches(Context& c, const Run& run, P&& products,
                                                O&& outputs) {
#pragma unroll 1
  for (int first = 0;; first += run.batch, ++c.batches) {
    if (first < run.units) {
      float* red = red_of(c, c.batches);
      products(first, min(run.batch, run.units - first), [&](int entry, int part, float4 v) {
        if (part == 0) wait_batch(c, c.s.red_free, c.batches - 2);
        keep_sums(c, red, entry, v, part > 0);
      });
      // A warp without an item must not be two batches ahead either.
      wait_batch(c, c.s.red_free, c.batches - 2);
      arrive_batch(c, c.s.red_done, c.batches);
    }
    if (first > 0) {
      const std::uint32_t before = c.batches - 1;
      outputs(first - run.batch, min(run.batch, run.units - first + run.batch), red_of(c, before),
              [&] { wait_batch(c, c.s.red_done, before); });
      arrive_batch(c, c.s.red_free, before);
    }
    if (first >= run.units) break;
  }
}

// `by_slot`: all rows of the step are staged, a slot reads its own; otherwise the rows of the run's
// one pass are.
template <bool WORDS>
__device__ __forceinline__ void gate_up_units(Context& c, const Run& run, bool by_slot) {
  const Matrix& m = run.m;
  const Table& t = c.s.table;
  const int own = c.lane >> 2;
  // Most columns that any of these units has, a power of two of them.
  const int most = c.routed != 0 && by_slot ? t.most : t.count[run.place(0).pass];
  const int log_columns = kOneRow || most <= 1 ? 0 : 32 - __clz(most - 1);
  const auto row_of = [&](int pass, bool on) {
    const int column_of = on ? own : 0;
    return by_slot ? t.slot_row[t.first[pass] + column_of] : column_of;
  };
  gate_up_batches(
      c, run,
      [&](int first, int units, auto&& store) {
        const auto on = [&](int pass) { return own < t.count[pass]; };
        if constexpr (kM3) {
          // A sum of each item.
          expert_products<GateUpKind>(
              c, run, first, units, first == 0 && run.units > run.batch,
              [&](int unit, int item) {
                const int pass = run.place(unit).pass;
                return ExpertItem{staged_row(c, m.row_bytes, row_of(pass, on(pass))), item};
              },
              store);
        } else {
          item_products<GateUpKind>(
              c, run, first, units,
              [&](int unit) {
                const int pass = run.place(unit).pass;
                return column(c, m.row_bytes, row_of(pass, on(pass)), on(pass));
              },
              [&](int unit, int part, float4 v) {
                store((unit - first) * gate_up_sums(m) + part, 0, v);
              });
        }
      },
      [&](int first, int units, const float* red, auto&& wait) {
        const int thread = activating_thread(c, c.batches);
        if ((thread & ~31) >= units * 8 << log_columns) return;
        wait();
        activate<WORDS>(c, run, first, units, log_columns, red, thread);
      });
}

// Passes [first, end) of the table: the shared expert's, or all routed ones. `routes`: experts are
// still to be chosen, and have been after the former's.
template <bool WORDS>
__device__ __forceinline__ void gate_up_passes(Context& c, bool routed, bool routes) {
  const Layer& layer = c.layer();
  const Table& t = c.s.table;
  const Matrix& m = routed ? layer.gate_up : layer.shared_gate_up;
  const int rows = c.rows();
  const bool by_slot = kOnePass || rows <= kColumns;
  const auto stage = [&](int n, const Rows& of) {
    stage_normed(c, m, c.p.middle, layer.post_norm, n, of);
    if (routes) order_beside_shared();
    routes = false;
  };
  // A model need not have a shared expert.
  if (by_slot && (kM3Sizes || m.row_groups > 0) && c.staged != Layout(m).id()) {
    stage(rows, Rows{0, nullptr});
    c.staged = Layout(m).id();
  }
  gate_up_runs(m, routed ? t.shared_passes : 0, routed ? t.passes : t.shared_passes,
               routed ? layer.shared_gate_up.row_groups : 0, rows, c.block, c.blocks,
               [&](const Run& run) {
                 const int pass = run.place(0).pass;
                 if (!by_slot) stage(t.count[pass], Rows{t.first[pass], t.slot_row});
                 gate_up_units<WORDS>(c, run, by_slot);
               });
  if (routes) order_beside_shared();  // a block without a unit of the shared expert
}

#if MONOLAYER_KERNELS_DENSE && MONOLAYER_KERNELS_ROWS > 8
// Gate and up of a dense layer for more than eight rows.
template <int NORM>
__device__ __forceinline__ void gate_up_by_halves(Context& c) {
  const Matrix& m = c.layer().shared_gate_up;
  const int width = c.layer().shared_down.cols;
  product_by_halves<DenseGateUpKind, NORM>(
      c, m, c.p.middle, c.layer().post_norm, c.rows(), Rows{0, nullptr}, nullptr,
      [&](int group, int i, int row, float sum, bool complete) {
        // Lanes i have gates, lanes i + 8 ups. The first half's sums wait where projections' were.
        float* const kept = c.p.projected + (group * 16 + i) * kMaxRows + row;
        if (!complete) {
          *kept = sum;
          return;
        }
        sum = (*kept + sum) * row_factor(m.row_scale, group * 16 + i);
        const float up = __shfl_down_sync(0xFFFFFFFFU, sum, 8);
        if (i < 8 && row < c.rows())
          c.p.mid[static_cast<std::int64_t>(row) * c.p.shape.mid_width + group * 8 + i] =
              activated(c.p.shape, c.layer(), sum, up);
      });
}
#endif

// Gate and up of the expert that every row goes to, which needs no routing, or of the routed ones:
// two halves, of which a dense layer's MLP is the first. `IN_STEP`: in a fused kernel, of which
// that for MiniMax-M3 routes beside the former. `WORDS`: activations are handed over as words.
__device__ __forceinline__ int gate_up_halves(const Layer& layer) {
  return has_experts(layer) ? 2 : 1;
}
template <bool IN_STEP, bool WORDS>
__device__ __forceinline__ void gate_up_half(Context& c) {
  constexpr bool kBeside = IN_STEP && kM3;
  const bool routed = !kDenseM3 && c.routed != 0;
  if (!routed) {
    if (c.staged < 0) {
      share_table(c);
      sync(c);
    }
  } else if (!kBeside) {
    build_table();
  }
#if MONOLAYER_KERNELS_DENSE && MONOLAYER_KERNELS_ROWS > 8
  if (is_by_halves(c.rows())) {
    gate_up_by_halves<IN_STEP ? kPostNorm : 0>(c);
    return;
  }
#endif
  const bool routes = kBeside && !routed;
  if (routes && !kNormsByPart) route_beside_shared();
  gate_up_passes<WORDS>(c, routed, routes && kNormsByPart);
  if (routed || !has_experts(c.layer())) c.staged = -1;
  if (!routed) return;
  // For the launch after this one, and for whoever looks.
  if (c.block == 0 && c.p.first_layer + c.layers_done + 1 == c.p.last_layer) {
#pragma unroll 1
    for (int i = c.thread; i < static_cast<int>(sizeof(Table) / 4); i += kThreads) {
      reinterpret_cast<std::uint32_t*>(c.p.table)[i] =
          reinterpret_cast<const std::uint32_t*>(&c.s.table)[i];
    }
  }
}

// A launch of its own: the table that the one before left.
__device__ __forceinline__ void load_table(Context& c) {
#pragma unroll 1
  for (int i = c.thread; i < static_cast<int>(sizeof(Table) / 4); i += kThreads) {
    reinterpret_cast<std::uint32_t*>(&c.s.table)[i] =
        __ldcg(reinterpret_cast<const std::uint32_t*>(c.p.table) + i);
  }
  sync(c);
  if (c.thread == 0) mbarrier_arrive(&c.s.routed);
}

// One output of one row and one part: the products of its experts, by ascending expert, the shared
// one last.
__device__ __forceinline__ float add_experts(const Context& c, const float* products, int row,
                                             int part, int parts, int i) {
  const Table& t = c.s.table;
  const int chosen = chosen_of(c.p.shape);
  const int all = chosen + (kM3 || c.layer().shared_gate_up.row_groups > 0 ? 1 : 0);
  const float* from = products + part * 16 + i;
  float sum = 0;
#pragma unroll(kM3 ? 5 : 1)
  for (int k = 0; k < all; ++k) {
    const int slot = k < chosen ? t.slot_of[row][k] : c.rows() * chosen + row;
    sum = fmaf(t.slot_weight[slot], from[slot * parts * 16], sum);
  }
  return sum;
}

// A batch's rows of activations into shared memory. Routed rows lie before the shared ones; the two
// may be padded differently, but not MiniMax-M3's.
__device__ __forceinline__ void stage_mid(Context& c, const DownBatch& batch, int row_bytes,
                                          int routed_end) {
  const Layer& layer = c.layer();
#pragma unroll 1
  for (int part = 0; part < (kM3 ? 1 : 2); ++part) {
    const Layout layout(part == 0 ? layer.down : layer.shared_down);
    const int begin = part == 0 ? batch.first_slot : max(batch.first_slot, routed_end);
    const int n = (part == 0 && !kM3 ? min(batch.end_slot, routed_end) : batch.end_slot) - begin;
    if (n <= 0) continue;
    const int at = begin - batch.first_slot;
    if (layout.padded()) {
#pragma unroll 1
      for (int k = c.thread; k < n * row_bytes / 16; k += kThreads) {
        reinterpret_cast<uint4*>(c.x + at * row_bytes)[k] = {0, 0, 0, 0};
      }
      sync(c);
    }
    stage_rows(c, layout, row_bytes, at, n, [&](int r) {
      return c.p.mid + static_cast<std::int64_t>(begin + r) * c.p.shape.mid_width;
    });
  }
  wait_copies();
  sync(c);
}

// The same of MiniMax-M3 from words.
__device__ __forceinline__ void stage_mid_of_words(Context& c, const DownBatch& batch,
                                                   int row_bytes) {
  const Matrix& m = c.layer().down;
  const int of_slot = m.cols / 4;
  const std::uint32_t magic = m.vectors_divider;  // two words a vector
  const uint4* words = words_at(kMidWords) + batch.first_slot * of_slot;
  stage_words((batch.end_slot - batch.first_slot) * of_slot, tag_of(c), layer_of(c), kGateUp,
              [&](int i) {
                const int slot = over(i >> 1, magic);
                return c.x + slot * row_bytes + (i - slot * of_slot) * 8;
              },
              [&](int i) { return words + i; });
  sync(c);
}

// Products of a batch, [group][slot][part][16].
__device__ __forceinline__ void down_products(Context& c, const DownBatch& batch, int row_bytes,
                                              float* products) {
  const Table& t = c.s.table;
  const int own = c.lane >> 2;
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    const Run run = batch.run(c.layer(), t, which);
    const Matrix& m = run.m;
    if (run.units == 0) continue;
    const int parts = m.parts;
    const auto row_of = [&](int pass, bool on) {
      return t.first[pass] - batch.first_slot + (on ? own : 0);
    };
    const int first_column = 2 * (c.lane & 3);
    // Where this lane's first column goes, of part 0.
    const auto to_of = [&](const Run::Place& place) {
      return products +
             ((place.group - batch.group) * t.slots + t.first[place.pass] + first_column) * parts *
                 16 +
             own;
    };
    const auto store = [&](float* to, int columns, float4 v) {
      if (columns <= 0) return;
      to[0] = v.x, to[8] = v.z;
      to += parts * 16;
      if (columns > 1) to[0] = v.y, to[8] = v.w;
    };
    if constexpr (kM3) {
      // Where sums go, and how many columns this lane has of them.
      expert_products<DownKind>(
          c, run, 0, run.units, which == 0 && run.units << run.log_items > kWarps,
          [&](int unit, int item) {
            const Run::Place place = run.place(unit);
            const int part = (item & ((1 << run.log_items) - 1)) * DownKind::kSpan;
            const int count = t.count[place.pass];
            const auto at = static_cast<int>(to_of(place) + part * 16 - products);
            return ExpertItem{staged_row(c, row_bytes, row_of(place.pass, own < count)),
                              at << 2 | max(0, min(count - first_column, 2))};
          },
          [&](int to, int part, float4 v) { store(products + (to >> 2) + part * 16, to & 3, v); });
    } else {
      item_products<DownKind>(
          c, run, 0, run.units,
          [&](int unit) {
            const int pass = run.place(unit).pass;
            const bool on = own < t.count[pass];
            return column(c, row_bytes, row_of(pass, on), on);
          },
          [&](int unit, int part, float4 v) {
            const Run::Place place = run.place(unit);
            if (m.row_scale != nullptr) {
              const float* scales =
                  m.row_scale + (max(t.expert[place.pass], 0) * m.row_groups + place.group) * 16 +
                  own;
              const float low = __ldg(scales);
              const float high = __ldg(scales + 8);
              v = {v.x * low, v.y * low, v.z * high, v.w * high};
            }
            store(to_of(place) + part * 16, t.count[place.pass] - first_column, v);
          });
    }
  }
}

// The outputs of a batch's row groups, from the products of all experts. Called by all computing
// warps before they have met: what the outputs are added to is asked for first.
template <bool WORDS>
__device__ __forceinline__ void add_down(Context& c, const DownBatch& batch, int parts,
                                         const float* products) {
  const int rows = c.rows();
  const int hidden = hidden_of(c.p.shape);
  const int log_parts = 31 - __clz(parts);
  const int total = batch.groups * rows * 16 << log_parts;
  const std::uint32_t magic = c.s.rows_divider;
  const bool peers = has_peers();
  const bool stalled = WORDS && is_stalled(kDown);
  struct Place {
    int group, row, at, out;
  };
  const auto place_of = [&](int i) {
    const int at = i >> log_parts & 15;
    const int of_rows = i >> log_parts >> 4;
    const int group = over(of_rows, magic);
    return Place{group, of_rows - group * rows, at, (batch.group + group) * 16 + at};
  };
  const auto residual_of = [&](int i) {
    const Place place = place_of(i);
    return i < total && place.out < hidden && !peers
               ? load_bf16(c.p.middle + static_cast<std::int64_t>(place.row) * hidden + place.out)
               : 0.0F;
  };
  float next = residual_of(c.thread);
  sync(c);
#pragma unroll 1
  for (int i = c.thread; (i & ~31) < total; i += kThreads) {
    const float residual = next;
    next = residual_of(i + kThreads);
    const Place place = place_of(i);
    const int part = i & (parts - 1);
    const bool in = i < total;
    float sum = 0;
    if (in)
      sum = add_experts(c, products + place.group * c.s.table.slots * parts * 16, place.row, part,
                        parts, place.at);
    sum = add_parts(parts, sum);
    const std::uint16_t value = to_bf16(residual + round_bf16(sum));
    if (WORDS && !peers) {
      // Lanes of a word have one row.
      const uint4 w = four_of_lanes(value, c.lane, parts, tag_of(c));
      if (in && !stalled && (c.lane & (4 * parts - 1)) == 0)
        store_words(words_at(kHiddenWords, place.row) + place.out / 4, w);
    }
    if (!in || part != 0 || place.out >= hidden) continue;
    if (peers) {
      publish(kMlpSite, layer_of(c), place.row, place.out, sum);
    } else {
      c.p.hidden[static_cast<std::int64_t>(place.row) * hidden + place.out] = value;
    }
  }
}

// Sums over a row's experts, eighth by eighth, then the tree, with peers that of all ranks, one
// rounding, and the residual.
template <bool WORDS>
__device__ __forceinline__ void down_rows(Context& c) {
  const Layer& layer = c.layer();
  const Table& t = c.s.table;
  const int row_bytes = max(layer.down.row_bytes, layer.shared_down.row_bytes);
  const int parts = layer.down.parts;
  const int routed_end = routed_slots(c.s, layer);
  unsigned char* const end = reinterpret_cast<unsigned char*>(c.red) +
                             2 * red_entries_of(c.p) * 16 * red_columns_of(c.p) * 4;
  if (WORDS) sync(c);  // whoever still reads x
  int staged = -1;     // the first pass whose rows are
  down_batches(c.p, layer, t, c.lane, c.block, c.blocks, [&](const DownBatch& batch) {
    if (staged >= 0) sync(c);  // whoever still reads rows or products
    if (staged != batch.first) {
      if constexpr (WORDS) {
        stage_mid_of_words(c, batch, row_bytes);
      } else {
        stage_mid(c, batch, row_bytes, routed_end);
      }
    }
    if (WORDS && staged < 0 && c.thread == 0) stamp(layer_of(c), kDown, 0);
    staged = batch.first;
    auto* products = reinterpret_cast<float*>(end - batch.sums);
    down_products(c, batch, row_bytes, products);
    if (batch.complete) add_down<WORDS>(c, batch, parts, products);
  });
}

template <bool WORDS>
__device__ __forceinline__ void down_stage(Context& c) {
  const Layer& layer = c.layer();
#if !MONOLAYER_KERNELS_M3
  if (!has_experts(layer)) {
    added_product<DownKind, kDown, false>(c, layer.shared_down);
    return;
  }
#endif
  if (has_peers() && !may_exchange(kMlpSite, layer_of(c), kDown)) return;
  down_rows<WORDS>(c);
  if (has_peers()) {
    collect_share<WORDS>(kMlpSite, layer_of(c), kDown, layer.down.row_groups, nullptr, tag_of(c));
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

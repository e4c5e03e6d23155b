// Routing and experts of the only row of a step of MiniMax-M3, from words and handed over as words:
// the sums and roundings of route.cuh and mlp.cuh.
#pragma once

#include "backend/cuda/device/mlp.cuh"
#include "backend/cuda/device/row_projections.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// The choice for the only row of a step of MiniMax-M3, whose 128 logits lie in shared memory in
// parts [part][expert]: what route_row does, with every lane knowing all four choices. `bias`: of
// experts 4 lane and three more.
__device__ __forceinline__ void route_only_row(Context& c, const float* logits, float4 bias) {
  float4 v[kRouterParts];
#pragma unroll
  for (int part = 0; part < kRouterParts; ++part)
    v[part] = *reinterpret_cast<const float4*>(logits + part * kMaxExperts + 4 * c.lane);
#pragma unroll
  for (int d = 1; d < kRouterParts; d <<= 1) {
#pragma unroll
    for (int part = 0; part < kRouterParts; part += 2 * d) {
      v[part].x += v[part + d].x;
      v[part].y += v[part + d].y;
      v[part].z += v[part + d].z;
      v[part].w += v[part + d].w;
    }
  }
  const float logit[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
  const float added[4] = {bias.x, bias.y, bias.z, bias.w};
  float score[4];
  std::uint32_t order[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    score[i] = sigmoid(logit[i]);
    const float biased = score[i] + added[i];
    order[i] = order_of(biased);
    if (biased != biased) order[i] = 1;  // a NaN is taken last
  }
  constexpr int kChosen = 4;
  std::uint32_t id[kChosen];
#pragma unroll
  for (int k = 0; k < kChosen; ++k) {
    const std::uint32_t best =
        __reduce_max_sync(0xFFFFFFFFU, max(max(order[0], order[1]), max(order[2], order[3])));
    std::uint32_t own = 0xFFFFFFFFU;
#pragma unroll
    for (int i = 3; i >= 0; --i)
      own = order[i] == best ? static_cast<std::uint32_t>(4 * c.lane + i) : own;
    id[k] = __reduce_min_sync(0xFFFFFFFFU, own);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (static_cast<std::uint32_t>(4 * c.lane + i) == id[k]) order[i] = 0;
  }
  const auto ascending = [&](int a, int b) {
    const std::uint32_t low = min(id[a], id[b]);
    id[b] = max(id[a], id[b]);
    id[a] = low;
  };
  ascending(0, 1), ascending(2, 3), ascending(0, 2), ascending(1, 3), ascending(1, 2);
  float weight[kChosen];
#pragma unroll
  for (int k = 0; k < kChosen; ++k) {
    const std::uint32_t i = id[k] & 3;
    const float own = i == 0 ? score[0] : i == 1 ? score[1] : i == 2 ? score[2] : score[3];
    weight[k] = __shfl_sync(0xFFFFFFFFU, own, static_cast<int>(id[k] >> 2));
  }
  const float sum = ((weight[0] + weight[1]) + weight[2]) + weight[3];
  if (c.lane >= kChosen) return;
  const auto of_lane = [&](auto a, auto b, auto d, auto e) {
    return c.lane == 0 ? a : c.lane == 1 ? b : c.lane == 2 ? d : e;
  };
  const auto own_id = static_cast<std::int32_t>(of_lane(id[0], id[1], id[2], id[3]));
  const float own_weight = of_lane(weight[0], weight[1], weight[2], weight[3]);
  Table& t = c.s.table;
  // Its choices are the slots, and a pass each.
  const int pass = t.shared_passes + c.lane;
  t.chosen[0][c.lane] = own_id;
  t.slot_of[0][c.lane] = c.lane;
  t.slot_row[c.lane] = 0;
  t.slot_weight[c.lane] = c.p.shape.routed_scale * __fdiv_rn(own_weight, sum);
  t.expert[pass] = static_cast<std::int16_t>(own_id);
  t.first[pass] = static_cast<std::int16_t>(c.lane);
  t.count[pass] = 1;
  if (c.lane == 0) t.passes = t.shared_passes + kChosen;
}

// Where partial logits lie, [part][expert]: behind the staged row.
inline constexpr int kLogitsBegin = kEarlyBegin;
static_assert(kLogitsBegin + kRouterParts * kMaxExperts * 4 <= attention_bytes(128, true));
// Activations of all experts of a row lie in shared memory at once.
static_assert(5 * (3072 * 2 + 64) <= attention_bytes(128, true));

// The routed part of the table, from words of partial logits, handed to the feeding warps, while
// other warps begin the shared expert.
__device__ __forceinline__ void route_beside(Context& c) {
  const int warp = routing_warp(c);
  if (warp < 0) return;
  const bool routes = warp == 0;
  float4 bias = {};
  if (routes && c.layer().router_bias != nullptr)
    bias = __ldg(reinterpret_cast<const float4*>(c.layer().router_bias) + c.lane);
  // [part][row group][8] of two rows: parts 4 apart.
  const int thread = warp * 32 + c.lane;
  const uint4* from = words_at(kRouterWords) + thread;
  uint4 w[4];
  take(w, tag_of(c), layer_of(c), kRouter, [&](int k) { return from + k * kRoutingThreads; });
  auto* logits = reinterpret_cast<float*>(c.x + kLogitsBegin);
  float* to = logits + (thread >> 6) * kMaxExperts + (thread >> 3 & 7) * 16 + (thread & 7);
#pragma unroll
  for (int k = 0; k < 4; ++k, to += kRoutingWarps / 2 * kMaxExperts) {
    to[0] = __uint_as_float(w[k].x);
    to[8] = __uint_as_float(w[k].y);
  }
  sync_routing();
  if (!routes) return;
  route_only_row(c, logits, bias);
  __syncwarp();
  if (c.lane == 0) mbarrier_arrive(&c.s.routed);
}

// The expert's activation from sums of `units` units, first.. of a run, that `red` holds; by
// threads `thread` and on.
__device__ __forceinline__ void activate_row(const Context& c, const Run& run, int first, int units,
                                             const float* red, int thread) {
  const int parts = gate_up_sums(run.m);
  const int width = red_columns_of(c.p);
  const int total = units * 8;
  const bool stalled = is_stalled(kGateUp);
#pragma unroll 1
  for (int i = thread; (i & ~31) < total; i += kThreads) {
    const bool in = i < total;
    const int k = in ? i >> 3 : 0;
    const int j = i & 7;
    const float* from = red + (k * parts * 16 + j) * width;
    const float gate = tree_of_parts(from, 16 * width, parts);
    const float up = tree_of_parts(from + 8 * width, 16 * width, parts);
    const Run::Place place = run.place(first + k);
    hand_over_columns(kMidWords,
                      c.s.table.first[place.pass] * c.layer().down.cols + place.group * 8 + j, 0,
                      in && !stalled, activated(c.p.shape, c.layer(), gate, up), tag_of(c));
  }
}

// gate_up_units() for one row, which the router has staged.
__device__ __forceinline__ void row_gate_up_units(Context& c, const Run& run) {
  const int x = staged_row(c, run.m.row_bytes, 0);
  gate_up_batches(
      c, run,
      [&](int first, int units, auto&& store) {
        expert_products<GateUpKind>(
            c, run, first, units, false,
            [&](int, int item) {
              return ExpertItem{x, item};
            },
            store);
      },
      [&](int first, int units, const float* red, auto&& wait) {
        const int thread = activating_thread(c, c.batches);
        if ((thread & ~31) >= units * 8) return;
        wait();
        activate_row(c, run, first, units, red, thread);
      });
}

// The shared expert, which needs no routing, or the routed ones.
__device__ __forceinline__ void row_gate_up_half(Context& c) {
  const bool routed = c.routed != 0;
  if (routed) {
    sync(c);  // the table is there
    if (c.thread == 0) stamp(layer_of(c), kGateUp, 0);
  } else {
    route_beside(c);
  }
  const Layer& layer = c.layer();
  const Table& t = c.s.table;
  gate_up_runs(routed ? layer.gate_up : layer.shared_gate_up, routed ? t.shared_passes : 0,
               routed ? t.passes : t.shared_passes, routed ? layer.shared_gate_up.row_groups : 0, 1,
               c.block, c.blocks, [&](const Run& run) { row_gate_up_units(c, run); });
  // For whoever looks.
  if (!routed || c.block != 0 || layer_of(c) + 1 != c.p.last_layer) return;
#pragma unroll 1
  for (int i = c.thread; i < static_cast<int>(sizeof(Table) / 4); i += kThreads) {
    reinterpret_cast<std::uint32_t*>(c.p.table)[i] =
        reinterpret_cast<const std::uint32_t*>(&c.s.table)[i];
  }
}

// One row's activations of its experts, from words.
__device__ __forceinline__ void stage_mid_words(Context& c, int width, int row_bytes, int slots) {
  const int of_slot = width / 4;
  const int n = slots * of_slot;
  const std::uint32_t magic = c.layer().down.vectors_divider;  // two words a vector
  sync(c);                                                     // whoever still reads x
#pragma unroll 1
  for (int first = c.thread; first < n; first += 2 * kThreads) {
    const uint4* low = words_at(kMidWords) + first;
    const uint4* high = first + kThreads < n ? low + kThreads : low;
    uint4 w[2];
    take(w, tag_of(c), layer_of(c), kGateUp, [&](int k) { return k == 0 ? low : high; });
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int i = first + k * kThreads;
      if (i >= n) continue;
      const int slot = over(i >> 1, magic);
      *reinterpret_cast<uint2*>(c.x + slot * row_bytes + (i - slot * of_slot) * 8) = {w[k].x,
                                                                                      w[k].y};
    }
  }
}

// down_rows() for one row, whose experts are slots in ascending order, the shared one last.
__device__ __forceinline__ void row_down_stage(Context& c) {
  const Layer& layer = c.layer();
  const Table& t = c.s.table;
  if (has_peers() && !may_exchange(kMlpSite, layer_of(c), kDown)) return;
  const int together = down_groups_of_row(c.p, layer, t);
  const int parts = layer.down.parts;
  const int log_parts = 31 - __clz(parts);
  const int row_bytes = layer.down.row_bytes;
  const int slots = t.slots;
  float* products = c.red;  // [group][slot][part][16]
  const Share mine(layer.down.row_groups, c.block, c.blocks);
  // What the first sums are added to, asked for early.
  const int early = mine.begin * 16 + (c.thread >> log_parts);
  const float residual = early < mine.end * 16 ? load_bf16(c.p.middle + early) : 0;
  stage_mid_words(c, layer.down.cols, row_bytes, slots);
  if (c.thread == 0) stamp(layer_of(c), kDown, 0);
  const bool stalled = is_stalled(kDown);
  sync(c);
#pragma unroll 1
  for (int g = mine.begin; g < mine.end; g += together) {
    if (g != mine.begin) sync(c);  // whoever still reads the products
    const DownBatch batch{g, min(together, mine.end - g), 0, t.passes, 0, slots, 0, true};
    // The routed experts' run, then the shared one's, whose items are a copy each.
    Run run = batch.run(layer, t, 0);
    run.units = slots * batch.groups;
    const auto slot_of = [&](int unit) { return over(unit, run.magic); };
    expert_products<DownKind>(
        c, run, 0, run.units, false,
        [&](int unit, int item) {
          const int slot = slot_of(unit);
          const int group = unit - slot * batch.groups;
          const int part = (item & ((1 << run.log_items) - 1)) * DownKind::kSpan;
          return ExpertItem{staged_row(c, row_bytes, slot),
                            ((group * slots + slot) * parts + part) * 16 + (c.lane >> 2)};
        },
        [&](int to, int part, float4 v) {
          if ((c.lane & 3) != 0) return;
          float* const at = products + to + part * 16;
          at[0] = v.x;
          at[8] = v.z;
        });
    sync(c);
    const int total = batch.groups * 16 * parts;
#pragma unroll 1
    for (int i = c.thread; (i & ~31) < total; i += kThreads) {
      const int part = i & (parts - 1);
      const int at = i >> log_parts;
      float sum = 0;
      if (i < total) {
        const float* from = products + ((at >> 4) * slots * parts + part) * 16 + (at & 15);
#pragma unroll
        for (int k = 0; k <= chosen_of(c.p.shape); ++k)
          sum = fmaf(t.slot_weight[k], from[k * parts * 16], sum);
      }
      sum = add_parts(parts, sum);
      const int out = g * 16 + at;
      const bool stores = i < total && part == 0;
      if (has_peers()) {
        if (stores) publish(kMlpSite, layer_of(c), 0, out, sum);
        continue;
      }
      std::uint16_t value = 0;
      if (i < total) {
        const float before =
            g == mine.begin && i < kThreads ? residual : load_bf16(c.p.middle + out);
        value = to_bf16(before + round_bf16(sum));
      }
      if (stores) c.p.hidden[out] = value;
      hand_over_columns(kHiddenWords, out, log_parts, i < total && !stalled, value, tag_of(c));
    }
  }
  if (has_peers())
    collect_row_share(kMlpSite, layer_of(c), kDown, layer.down.row_groups, nullptr, tag_of(c));
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

// Which experts a step's rows go to.
#pragma once

#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/device/units.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// Top experts of one row by one warp: sigmoid scores, choice by score plus bias, the lower id
// among equals, weights renormalised over the chosen ones in ascending order. Of several rows,
// store(rank, expert, weight), by a lane each.
template <typename S>
__device__ __forceinline__ void route_row(const Context& c, int row, S&& store) {
  const Shape& s = c.p.shape;
  const Matrix& m = c.layer().router;
  float score[4];
  std::uint32_t order[4];
  // Lane l: experts 4 l and three more; the parts in the fixed tree.
  const int groups = kM3 ? experts_of(s) / 16 : m.row_groups;
  const float* at = c.p.router + static_cast<std::int64_t>(row) * 16 * groups + 4 * c.lane;
  const std::int64_t stride = static_cast<std::int64_t>(kMaxRows) * 16 * groups;
  float4 v[kRouterParts];
#pragma unroll
  for (int part = 0; part < kRouterParts; ++part) {
    v[part] = {};
    if (4 * c.lane < experts_of(s)) {
      v[part] = __ldcg(reinterpret_cast<const float4*>(at + part * stride));
    }
  }
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
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int e = 4 * c.lane + i;
    score[i] = 0;
    order[i] = 0;
    if (e >= experts_of(s)) continue;
    const float logit = i == 0 ? v[0].x : i == 1 ? v[0].y : i == 2 ? v[0].z : v[0].w;
    score[i] = sigmoid(logit);
    const float biased =
        score[i] + (c.layer().router_bias != nullptr ? __ldg(c.layer().router_bias + e) : 0.0F);
    order[i] = order_of(biased);
    if (biased != biased) order[i] = 1;  // a NaN is taken last
  }
  int own_id = kMaxExperts;  // lane k holds the k-th choice
  float own_weight = 0;
#pragma unroll 1
  for (int k = 0; k < chosen_of(s); ++k) {
    const std::uint32_t best =
        __reduce_max_sync(0xFFFFFFFFU, max(max(order[0], order[1]), max(order[2], order[3])));
    std::uint32_t id = 0xFFFFFFFFU;
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      if (order[i] == best) id = static_cast<std::uint32_t>(4 * c.lane + i);
    }
    id = __reduce_min_sync(0xFFFFFFFFU, id);
    float mine = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (static_cast<std::uint32_t>(4 * c.lane + i) != id) continue;
      mine = score[i];
      order[i] = 0;
    }
    mine = __shfl_sync(0xFFFFFFFFU, mine, static_cast<int>(id >> 2));
    if (c.lane == k) {
      own_id = static_cast<int>(id);
      own_weight = mine;
    }
  }
  // Ascending ids: the rank of each choice, then the sum in that order.
  int rank = 0;
#pragma unroll(kM3 ? 4 : 1)
  for (int k = 0; k < chosen_of(s); ++k)
    rank += __shfl_sync(0xFFFFFFFFU, own_id, k) < own_id ? 1 : 0;
  float sum = 0;
#pragma unroll(kM3 ? 4 : 1)
  for (int k = 0; k < chosen_of(s); ++k) {
    const unsigned holder = __ballot_sync(0xFFFFFFFFU, c.lane < chosen_of(s) && rank == k);
    sum += __shfl_sync(0xFFFFFFFFU, own_weight, __ffs(static_cast<int>(holder)) - 1);
  }
  if (c.lane >= chosen_of(s)) return;
  const float weight = s.routed_scale * __fdiv_rn(own_weight, sum);
  if (!kOneRow) {
    store(rank, own_id, weight);
    return;
  }
  // One row: its choices are the slots, and a pass each.
  Table& t = c.s.table;
  const int pass = t.shared_passes + rank;
  t.chosen[0][rank] = own_id;
  t.slot_of[0][rank] = rank;
  t.slot_row[rank] = 0;
  t.slot_weight[rank] = weight;
  t.expert[pass] = static_cast<std::int16_t>(own_id);
  t.first[pass] = static_cast<std::int16_t>(rank);
  t.count[pass] = 1;
  if (rank == 0) t.passes = t.shared_passes + chosen_of(s);
}

// A choice of a row, for order_choices().
__device__ __forceinline__ void keep_choice(const Context& c, int row, int rank, int expert,
                                            float weight) {
  c.s.table.chosen[row][rank] = expert;
  c.s.route_weight[row][rank] = weight;
  c.s.experts[row * chosen_of(c.p.shape) + rank] = static_cast<std::uint8_t>(expert);
}
__device__ __forceinline__ void route_row(const Context& c, int row) {
  route_row(c, row,
            [&](int rank, int expert, float weight) { keep_choice(c, row, rank, expert, weight); });
}

// The shared expert's part of the table: known before any routing, once all feeding warps have
// read the previous layer's.
__device__ __forceinline__ void share_table(Context& c) {
#pragma unroll
  for (int i = 0; i < kFeeders; ++i) {
    while (c.s.fed_layers[i] < c.layers_done && c.s.abort == 0) {
    }
  }
  const int rows = c.rows();
  const int first = routed_slots(c.s, c.layer());
  const bool shared = c.layer().shared_gate_up.row_groups > 0;
  Table& t = c.s.table;
  if (c.thread < rows && shared) {
    t.slot_row[first + c.thread] = c.thread;
    t.slot_weight[first + c.thread] = 1.0F;
    if (c.thread % kColumns == 0) {
      const int pass = c.thread / kColumns;
      t.expert[pass] = -1;
      t.first[pass] = static_cast<std::int16_t>(first + c.thread);
      t.count[pass] = static_cast<std::int16_t>(min(kColumns, rows - c.thread));
    }
  }
  if (c.thread == 0) {
    t.most = 1;
    t.shared_passes = t.passes = shared ? passes(rows) : 0;
    t.slots = first + (shared ? rows : 0);
  }
}

// Fills the routed part of the table from the choices of all rows. A thread has one (row, choice):
// its slot is the number of choices before it, by expert, then row. `thread`: of those that meet in
// meet(), which makes what they stored visible: one a choice, and four at least.
template <typename S>
__device__ __forceinline__ void order_choices(const Context& c, int thread, S&& meet) {
  const int rows = c.rows();
  const int chosen = chosen_of(c.p.shape);
  const int choices = rows * chosen;
  Table& t = c.s.table;
  if (thread < 4) {
    // What fills the last word is no choice: after all experts, and begins nothing.
    if (choices + thread < kMaxRows * kMaxChosen) {
      c.s.experts[choices + thread] = 0xFF;
      c.s.begins[choices + thread] = 0;
    }
  }
  meet();
  const int row = thread / chosen;
  const int k = thread - row * chosen;
  const int shared_passes = t.shared_passes;
  // Choices before this one, by expert, then row; experts are bytes, four a word.
  constexpr int kWords = kMostRows * kMaxChosen / 4;
  const int words = (choices + 3) / 4;
  const std::uint32_t own = c.s.experts[thread < choices ? thread : 0] * 0x01010101U;
  const auto earlier_rows = [&](int word) {  // a mask of the choices of rows before this one
    const int count = row * chosen - 4 * word;
    return count >= 4 ? 0xFFFFFFFFU : count <= 0 ? 0U : (1U << 8 * count) - 1;
  };
  const auto* experts = reinterpret_cast<const std::uint32_t*>(c.s.experts);
  int slot = 0;
  int earlier = 0;  // of the same expert
  int together = 0;
  if (thread < choices) {
#pragma unroll(kOnePass ? 1 : 2)
    for (int word = 0; word < min(words, kWords); ++word) {
      const std::uint32_t others = experts[word];
      const std::uint32_t same = __vcmpeq4(others, own);
      const std::uint32_t before = same & earlier_rows(word);
      slot += __popc(__vcmpltu4(others, own) | before) / 8;
      earlier += __popc(before) / 8;
      together += __popc(same) / 8;
    }
    c.s.begins[thread] = earlier % kColumns == 0 ? 0xFF : 0;
    t.slot_of[row][k] = slot;
    t.slot_row[slot] = row;
    t.slot_weight[slot] = c.s.route_weight[row][k];
  }
  meet();
  // Every eighth slot of an expert begins a pass.
  if (thread >= choices) return;
  const auto* begins = reinterpret_cast<const std::uint32_t*>(c.s.begins);
  int pass = shared_passes;
  int all = shared_passes;
#pragma unroll(kOnePass ? 1 : 2)
  for (int word = 0; word < min(words, kWords); ++word) {
    const std::uint32_t others = experts[word];
    const std::uint32_t begin = begins[word];
    const std::uint32_t before = __vcmpeq4(others, own) & earlier_rows(word);
    pass += __popc((__vcmpltu4(others, own) | before) & begin) / 8;
    all += __popc(begin) / 8;
  }
  if (earlier % kColumns == 0) {
    const int expert = t.chosen[row][k];
    t.expert[pass] = static_cast<std::int16_t>(expert);
    t.first[pass] = static_cast<std::int16_t>(slot);
    const int count = min(kColumns, together - earlier);
    t.count[pass] = static_cast<std::int16_t>(count);
    if (count > 1) atomicMax(&t.most, count);
  }
  if (thread == 0) t.passes = all;
}

// The routed part of the table, handed to the feeding warps; by all computing warps.
__device__ __noinline__ void build_table() {
  const Context c = open_context(own_state());
  if (kM3 && kOneRow) {
    if (c.warp == 0) {
      route_row(c, 0);
      __syncwarp();
      if (c.lane == 0) mbarrier_arrive(&c.s.routed);
    }
    sync(c);
    return;
  }
  const int rows = c.rows();
#pragma unroll 1
  for (int row = c.warp; row < rows; row += kWarps) route_row(c, row);
  order_choices(c, c.thread, [] { sync(); });
  sync(c);
  if (c.thread == 0) mbarrier_arrive(&c.s.routed);
}

// Half of the computing warps: the number of this one among those that route while the others work
// on the shared expert, negative if it is none. They are those whose turn for its items comes last:
// on a rank of four they have none.
__device__ __forceinline__ int routing_warp(const Context& c) {
  const int round = c.p.round;
  const int turn = c.warp < round ? (c.warp - c.turn) & (round - 1) : c.warp;
  return turn - (kWarps - kRoutingWarps);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

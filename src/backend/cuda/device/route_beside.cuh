// The choice of a step's experts beside the shared expert, in the fused kernels for several rows of
// MiniMax-M3.
#pragma once

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/route.cuh"
#include "backend/cuda/device/words.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// The routed part of the table, handed to the feeding warps, by half of the warps while others
// begin the shared expert, once all partial logits are there: a warp a row, then a lane a choice.
// If the block gives up there is no table, and the meeting before the routed experts ends it.
__device__ __noinline__ void route_beside_shared() {
  const Context c = open_context(own_state());
  static_assert(!kM3 || !kOnePass || (kMostRows <= kRoutingWarps && kMostRows * 4 <= 32));
  const int warp = routing_warp(c);
  if (warp < 0) return;
  if (warp == 0 && c.lane == 0) poll_arrivals(layer_of(c), kRouter);
  __syncwarp();
  if (sync_routing_or(c.s.abort != 0)) return;
  if (warp < c.rows()) route_row(c, warp);
  sync_routing();
  if (warp != 0) return;
  order_choices(c, c.lane, [] { __syncwarp(); });
  __syncwarp();
  if (c.lane == 0) mbarrier_arrive(&c.s.routed);
}

// Of more rows, whose partial logits are more than every block should read, 8 KB a row: some blocks
// choose the experts of all rows and hand them over. They are the last ones, which on a whole
// device have no item of the router.
inline constexpr int kRoutingBlocks = 4;
static_assert(kMaxRows <= kRoutingBlocks * kWarps);
__device__ __noinline__ void route_for_all() {
  const Context c = open_context(own_state());
  const int first = c.blocks - 1 - c.block;
  if (first >= kRoutingBlocks) return;
  if (c.thread == 0) poll_arrivals(layer_of(c), kRouter);
  __syncwarp();
  const int row = first + c.warp * kRoutingBlocks;
  if (sync_or(c.s.abort != 0) || row >= c.rows() || is_stalled(kRouter)) return;
  route_row(c, row, [&](int rank, int expert, float weight) {
    store_words(words_at(kChoiceWords) + row * 4 + rank,
                {static_cast<std::uint32_t>(expert), __float_as_uint(weight), 0, tag_of(c)});
  });
}
// The routed part of the table from them, as above.
__device__ __noinline__ void order_beside_shared() {
  const Context c = open_context(own_state());
  static_assert(!kM3 || kMostRows * 4 <= kRoutingThreads);
  const int warp = routing_warp(c);
  if (warp < 0) return;
  const int choice = warp * 32 + c.lane;
  if (choice < c.rows() * 4) {
    uint4 w[1];
    take(w, tag_of(c), layer_of(c), kRouter, [&](int) { return words_at(kChoiceWords) + choice; });
    keep_choice(c, choice / 4, choice % 4, static_cast<int>(w[0].x % kMaxExperts),
                __uint_as_float(w[0].y));
  }
  __syncwarp();
  order_choices(c, choice, [] { sync_routing(); });
  if (sync_routing_or(c.s.abort != 0)) return;
  if (warp == 0 && c.lane == 0) mbarrier_arrive(&c.s.routed);
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

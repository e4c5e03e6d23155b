// Warps of a block that work on something together: all that compute, or half of them, so that a
// block does two things side by side.
#pragma once

#include "backend/cuda/device/context.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

template <int WARPS>
struct Team {
  static constexpr int kWarpsOfTeam = WARPS;
  static constexpr int kThreadsOfTeam = WARPS * 32;
  static constexpr int kTeams = kWarps / WARPS;

  int number;              // of the block's teams
  int thread, warp, lane;  // of the team

  __device__ explicit Team(const Context& c)
      : number(kTeams == 1 ? 0 : c.warp / WARPS),
        thread(c.thread - number * kThreadsOfTeam),
        warp(c.warp - number * WARPS),
        lane(c.lane) {}

  __device__ __forceinline__ void sync() const {
    constexpr int kFirstBarrier = 3;  // 0: the block; 1: all that compute; 2: those that route
    asm volatile("bar.sync %0, %1;" ::"r"(kFirstBarrier + number), "n"(kThreadsOfTeam) : "memory");
  }
};

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

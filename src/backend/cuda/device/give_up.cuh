// The end of waits: deadlines, and the one record that all ranks get.
#pragma once

#include "backend/cuda/device/context.cuh"
#include "backend/cuda/device/mail.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// Tests: whether this block stops at `stage`.
__device__ __noinline__ bool stalls_at(int stage) {
  const Shared& s = shared();
  return (s.params.stall_stage < 0 || stage == s.params.stall_stage) &&
         (s.params.stall_step < 0 || s.step_tag == static_cast<std::uint32_t>(s.params.stall_step));
}
__device__ __forceinline__ bool is_stalled(int stage) {
  return shared().block == shared().params.stall_block && stalls_at(stage);
}

// Where a wait stands.
struct Place {
  int layer, stage;
  Region region;
  int index = 0;
};

// Whether a wait that has failed for a while must end: because somebody gave up, or because its
// deadline has passed, which then is recorded for everybody. `start` is 0 at the first call.
__device__ __noinline__ bool give_up(std::uint64_t& start, Place at, std::uint32_t expected,
                                     std::uint32_t seen) {
  Shared& s = shared();
  const Params& p = s.params;
  if (s.abort != 0) return true;
  if (is_set(p.record)) {
    s.abort = 1;
    return true;
  }
  const std::uint64_t now = global_timer();
  if (start == 0) start = now;
  if (now - start < p.deadline_ns) return false;
  s.abort = 1;
  record_for_all(p.mail, p.record,
                 {.set = 1,
                  .block = static_cast<std::uint32_t>(s.block),
                  .layer = static_cast<std::uint32_t>(at.layer),
                  .stage = static_cast<std::uint32_t>(at.stage),
                  .expected = expected,
                  .seen = seen,
                  .rank = static_cast<std::uint32_t>(p.mail.rank),
                  .region = at.region,
                  .index = static_cast<std::uint32_t>(at.index)});
  return true;
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

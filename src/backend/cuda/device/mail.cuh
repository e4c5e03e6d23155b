// Words, fences and records in the ranks' regions: everything that crosses devices, with `.sys`
// scope, whether a peer is on another device or on this one.
#pragma once

#include "backend/cuda/device/ptx.cuh"
#include "backend/cuda/mailbox.h"

namespace monolayer::cuda {

__device__ __forceinline__ std::uint64_t load_word(const std::uint64_t* p) {
  std::uint64_t v = 0;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_word(std::uint64_t* p, std::uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ std::uint64_t acquire_word(const std::uint64_t* p) {
  std::uint64_t v = 0;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void release_word(std::uint64_t* p, std::uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Whether a record has been begun, here or by a peer.
__device__ __forceinline__ bool is_set(const Record* record) {
  std::uint32_t v = 0;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(&record->set) : "memory");
  return v != 0;
}

__device__ __forceinline__ std::uint64_t* mail_at(const Mailbox& m, int rank, std::int64_t offset) {
  return reinterpret_cast<std::uint64_t*>(m.region[rank] + offset);
}
// What rank `to` reads of this rank (or, standing in for everybody, of rank `to`).
__device__ __forceinline__ int writer_at(const Mailbox& m, int to) {
  return m.stand_in != 0 ? to : m.rank;
}

// Puts the record where nobody has put one before: at this rank, then at all others.
__device__ __noinline__ inline void record_for_all(const Mailbox& m, Record* own, const Record& r) {
  const auto put = [&r](Record* to) {
    if (atomicCAS_system(&to->set, 0U, 1U) != 0U) return false;
    to->block = r.block;
    to->layer = r.layer;
    to->stage = r.stage;
    to->expected = r.expected;
    to->seen = r.seen;
    to->rank = r.rank;
    to->region = r.region;
    to->index = r.index;
    __threadfence_system();
    atomicExch_system(&to->set, 2U);
    return true;
  };
  if (!put(own)) return;
#pragma unroll 1
  for (int rank = 0; rank < m.ranks; ++rank) {
    if (m.ranks > 1 && rank != m.rank) put(reinterpret_cast<Record*>(m.region[rank] + kMailRecord));
  }
}

}  // namespace monolayer::cuda

#include "backend/cuda/exchange.h"

#include <algorithm>

#include "backend/cuda/device/mail.cuh"

namespace monolayer::cuda {
namespace {

constexpr int kBeginThreads = 512;

__device__ std::uint64_t now() {
  std::uint64_t t = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// Thread 0: tells all ranks that this one has reached `step`, and waits for all.
__device__ bool fence(const Params& p, std::int64_t slots, Region region, std::uint64_t step) {
  const Mailbox& m = p.mail;
  for (int to = 0; to < m.ranks; ++to) {
    release_word(mail_at(m, to, slots + writer_at(m, to) * kMailLine), step);
  }
  std::uint64_t start = 0;
  for (int from = 0; from < m.ranks; ++from) {
    const std::uint64_t* slot = mail_at(m, m.rank, slots + from * kMailLine);
    std::uint64_t seen = 0;
    for (std::uint32_t polls = 1; (seen = acquire_word(slot)) < step; ++polls) {
      if (polls % 64 != 0) continue;
      if (is_set(p.record)) return false;
      const std::uint64_t time = now();
      if (start == 0) start = time;
      if (time - start < p.deadline_ns) continue;
      record_for_all(m, p.record,
                     {.set = 1,
                      .block = 0,
                      .layer = 0,
                      .stage = kEmbed,
                      .expected = static_cast<std::uint32_t>(step),
                      .seen = static_cast<std::uint32_t>(seen),
                      .rank = static_cast<std::uint32_t>(m.rank),
                      .region = region,
                      .index = static_cast<std::uint32_t>(from)});
      return false;
    }
  }
  return true;
}

// A block a rank.
__global__ void __launch_bounds__(kBeginThreads)
    begin_step(const __grid_constant__ Params argument) {
  const Params& p = argument.rank_params != nullptr ? argument.rank_params[blockIdx.x] : argument;
  const Mailbox& m = p.mail;
  __shared__ std::uint64_t step;
  if (threadIdx.x == 0) {
    std::uint64_t* counter = mail_at(m, m.rank, kMailStep);
    const std::uint64_t next = load_word(counter) + 1;
    const bool failed = is_set(p.record);
    if (!failed) store_word(counter, next);
    step = !failed && fence(p, kMailFence, kFence, next) ? next : 1;
  }
  __syncthreads();
  if (step % kMailRound != 0) return;
  // The tags of the round before come again: no word of it may be left.
  std::uint64_t* words = mail_at(m, m.rank, kMailWords);
  const std::int64_t count = mail_words(m.ranks, p.shape.hidden);
  for (std::int64_t i = threadIdx.x; i < count; i += kBeginThreads) store_word(words + i, 0);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) fence(p, kMailSecondFence, kSecondFence, step);
}

}  // namespace

cudaError_t launch_begin_step(const Params& params, cudaStream_t stream) {
  Params copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&begin_step),
                                     dim3(static_cast<unsigned>(std::max(1, params.local_ranks))),
                                     dim3(kBeginThreads), arguments, 0, stream);
}

}  // namespace monolayer::cuda

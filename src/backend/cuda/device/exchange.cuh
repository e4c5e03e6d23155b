// The exchange of a layer's two split sums between ranks, inside the stage that makes them: a block
// publishes the sums of its columns to every rank, then collects the same columns of all ranks.
// docs/protocol.md has the reasons and the proof.
#pragma once

#include "backend/cuda/device/give_up.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

__device__ __forceinline__ bool has_peers() { return shared().params.mail.ranks > 1; }

// At the start of a launch, by all threads of the block: the tag of the step, which
// begin_step counted before. False if an earlier launch of the step has failed.
__device__ __forceinline__ bool open_mailbox() {
  Shared& s = shared();
  const Params& p = s.params;
  if (threadIdx.x == 0) {
    s.step_tag = mail_step_tag(load_word(mail_at(p.mail, p.mail.rank, kMailStep)));
    if (load_relaxed(&p.record->set) != 0) s.abort = 1;
  }
  __syncthreads();
  return s.abort == 0;
}

__device__ __forceinline__ std::uint32_t mix(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352dU;
  x = (x ^ x >> 15) * 0x846ca68bU;
  return x ^ x >> 16;
}
// Tests: one rank of the exchange, another each time, is late by a random time, a different one for
// each of its blocks; and a block may stop here for good: false.
__device__ __noinline__ bool may_exchange(Site site, int layer, int stage) {
  Shared& s = shared();
  const Mailbox& m = s.params.mail;
  if (is_stalled(stage)) {
    s.abort = 1;
    return false;
  }
  if (m.delay_ns == 0) return true;
  const std::uint32_t h = mix(mail_tag(s.step_tag, layer) * 2 + site);
  if (static_cast<int>(h % static_cast<std::uint32_t>(m.ranks)) != m.rank) return true;
  const std::uint32_t late = mix(h + static_cast<std::uint32_t>(s.block) + 1) % m.delay_ns;
  const std::uint64_t start = global_timer();
  while (global_timer() - start < late) {
  }
  return true;
}

// One sum of this rank, to all ranks.
__device__ __forceinline__ void publish(Site site, int layer, int row, int column, float sum) {
  const Shared& s = shared();
  const Mailbox& m = s.params.mail;
  const std::uint64_t word =
      static_cast<std::uint64_t>(mail_tag(s.step_tag, layer)) << 32 | __float_as_uint(sum);
  const int hidden = hidden_of(s.params.shape);
#pragma unroll 1
  for (int to = 0; to < m.ranks; ++to) {
    store_word(mail_at(m, to, kMailWords) +
                   mail_word(m.ranks, hidden, site, writer_at(m, to), row, column),
               word);
  }
}

// The sum of all ranks in the fixed tree, once all have published theirs.
__device__ __forceinline__ float collect(Site site, int layer, int stage, int row, int column) {
  const Shared& s = shared();
  const Mailbox& m = s.params.mail;
  const int ranks = m.ranks;
  const int hidden = hidden_of(s.params.shape);
  const std::uint64_t* from =
      mail_at(m, m.rank, kMailWords) + mail_word(ranks, hidden, site, 0, row, column);
  const std::int64_t stride = mail_word(ranks, hidden, 0, 1, 0, 0);
  const std::uint32_t tag = mail_tag(s.step_tag, layer);
  float v[kMaxRanks] = {};
  std::uint64_t start = 0;
#pragma unroll 1
  for (std::uint32_t polls = 1;; ++polls) {
    std::uint64_t word[kMaxRanks];
#pragma unroll
    for (int r = 0; r < kMaxRanks; ++r) {
      if (r < ranks) word[r] = load_word(from + r * stride);
    }
    int missing = -1;
    std::uint32_t seen = 0;
#pragma unroll
    for (int r = kMaxRanks - 1; r >= 0; --r) {
      if (r >= ranks) continue;
      v[r] = __uint_as_float(static_cast<std::uint32_t>(word[r]));
      if (static_cast<std::uint32_t>(word[r] >> 32) == tag) continue;
      missing = r;
      seen = static_cast<std::uint32_t>(word[r] >> 32);
    }
    if (missing < 0) break;
    if (polls % 64 != 0) continue;
    const int index = (missing * kMailRows + row) * hidden + column;
    if (give_up(start, {.layer = layer, .stage = stage, .region = kWords, .index = index}, tag,
                seen)) {
      break;
    }
  }
  float sum = v[0] + v[1];
  if (ranks > 2) sum = sum + (v[2] + v[3]);
  if (ranks > 4) sum = sum + ((v[4] + v[5]) + (v[6] + v[7]));
  return sum;
}

// The end of a stage that exchanges: the totals of this block's columns, in groups of 16, rounded
// and added to the stream. `scales`: a factor a column, or null.
__device__ __noinline__ void collect_share(Site site, int layer, int stage, int row_groups,
                                           const float* scales) {
  const Shared& s = shared();
  const Params& p = s.params;
  const int hidden = hidden_of(p.shape);
  const std::uint16_t* from = site == kAttentionSite ? p.hidden : p.middle;
  std::uint16_t* to = site == kAttentionSite ? p.middle : p.hidden;
  const Share mine(row_groups, s.block, s.blocks);
  const int width = mine.count() * 16;
  const int total = rows_of(s.step) * width;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < total; i += kThreads) {
    const int row = i / width;
    const int column = mine.begin * 16 + i - row * width;
    if (column >= hidden) continue;
    const std::int64_t at = static_cast<std::int64_t>(row) * hidden + column;
    const float factor = scales != nullptr ? __ldg(scales + column) : 1.0F;
    const float before = __uint_as_float(static_cast<std::uint32_t>(__ldcg(from + at)) << 16);
    const float sum = collect(site, layer, stage, row, column) * factor;
    to[at] = __bfloat16_as_ushort(__float2bfloat16_rn(before + round_bf16(sum)));
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

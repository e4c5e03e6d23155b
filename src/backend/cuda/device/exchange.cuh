// The exchange of a layer's two split sums between ranks, inside the stage that makes them: a block
// publishes the sums of its columns to every rank, then collects the same columns of all ranks.
// docs/protocol.md has the reasons and the proof.
#pragma once

#include "backend/cuda/device/give_up.cuh"
#include "backend/cuda/device/words.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

__device__ __forceinline__ bool has_peers() { return shared().params.mail.ranks > 1; }

// At the start of a launch, by all threads of the block: the tag of the step, which begin_step
// counted before, and where this rank's words go. False if an earlier launch of the step has
// failed.
__device__ __forceinline__ bool open_mailbox() {
  Shared& s = shared();
  const Params& p = s.params;
  const Mailbox& m = p.mail;
  const int hidden = hidden_of(p.shape);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < m.ranks) {
    s.push[thread] =
        mail_at(m, thread, kMailWords) + mail_word(m.ranks, hidden, 0, writer_at(m, thread), 0, 0);
  }
  if (thread == 0) {
    s.pull = mail_at(m, m.rank, kMailWords);
    s.site_words = static_cast<std::int32_t>(mail_word(m.ranks, hidden, 1, 0, 0, 0));
    s.step_tag = mail_step_tag(load_word(mail_at(m, m.rank, kMailStep)));
    s.tested = p.stall_block >= 0 || m.delay_ns != 0 ? 1 : 0;
    if (is_set(p.record)) s.abort = 1;
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
__device__ __noinline__ bool tested_exchange(Site site, int layer, int stage) {
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

__device__ __forceinline__ bool may_exchange(Site site, int layer, int stage) {
  return shared().tested == 0 || tested_exchange(site, layer, stage);
}

// One sum of this rank, to all ranks.
__device__ __forceinline__ void publish(Site site, int layer, int row, int column, float sum) {
  const Shared& s = shared();
  const std::uint64_t word =
      static_cast<std::uint64_t>(mail_tag(s.step_tag, layer)) << 32 | __float_as_uint(sum);
  const int at = (site == kMlpSite ? s.site_words : 0) + row * hidden_of(s.params.shape) + column;
#pragma unroll 1
  for (int to = 0; to < s.params.mail.ranks; ++to) store_word(s.push[to] + at, word);
}

// Whether a wait for a word must end.
__device__ __noinline__ bool give_up_word(std::uint64_t& start, int layer, int stage, int writer,
                                          int at, std::uint64_t word) {
  const Shared& s = shared();
  const int index = writer * kMailRows * hidden_of(s.params.shape) + at;
  return give_up(start, {.layer = layer, .stage = stage, .region = kWords, .index = index},
                 mail_tag(s.step_tag, layer), static_cast<std::uint32_t>(word >> 32));
}
__device__ __forceinline__ bool has_tag(std::uint64_t word, std::uint32_t tag) {
  return static_cast<std::uint32_t>(word >> 32) == tag;
}
__device__ __forceinline__ float value_in(std::uint64_t word) {
  return __uint_as_float(static_cast<std::uint32_t>(word));
}

// The sum of ranks first .. first + 3 in the fixed tree, once they have published theirs: `from` is
// rank 0's word, `at` its place in a row of words.
__device__ __noinline__ float collect_four(const std::uint64_t* from, int first, int layer,
                                           int stage, int at) {
  const Shared& s = shared();
  const int stride = kMailRows * hidden_of(s.params.shape);
  const std::uint32_t tag = mail_tag(s.step_tag, layer);
  from += first * stride;
  std::uint64_t word[4];
  std::uint64_t start = 0;
#pragma unroll 1
  for (std::uint32_t polls = 1;; ++polls) {
#pragma unroll
    for (int r = 0; r < 4; ++r) word[r] = load_word(from + r * stride);
    int missing = -1;
#pragma unroll
    for (int r = 3; r >= 0; --r) missing = has_tag(word[r], tag) ? missing : r;
    if (missing < 0) break;
    if (polls % 64 == 0 && give_up_word(start, layer, stage, first + missing, at,
                                        load_word(from + missing * stride))) {
      break;
    }
  }
  return (value_in(word[0]) + value_in(word[1])) + (value_in(word[2]) + value_in(word[3]));
}

// The sums of two ranks at COUNT places.
template <int COUNT>
__device__ __forceinline__ void collect_two(const std::uint64_t* from, const int (&at)[COUNT],
                                            int layer, int stage, float (&sum)[COUNT]) {
  const Shared& s = shared();
  const int stride = kMailRows * hidden_of(s.params.shape);
  const std::uint32_t tag = mail_tag(s.step_tag, layer);
  std::uint64_t word[2 * COUNT];
  std::uint64_t start = 0;
#pragma unroll 1
  for (std::uint32_t polls = 1;; ++polls) {
    int missing = -1;
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i) word[i] = load_word(from + at[i / 2] + i % 2 * stride);
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i) missing = has_tag(word[i], tag) ? missing : i;
    if (missing < 0) break;
    if (polls % 64 != 0) continue;
    const int place = at[COUNT > 1 ? missing / 2 : 0];
    if (give_up_word(start, layer, stage, missing % 2, place,
                     load_word(from + place + missing % 2 * stride))) {
      break;
    }
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sum[i] = value_in(word[2 * i]) + value_in(word[2 * i + 1]);
}

// The end of a stage that exchanges: the totals of this block's columns, in groups of 16, rounded
// and added to the stream. `scales`: a factor a column, or null. With several rows a thread takes
// two values at a time. Short: the code is fetched again in every layer. `WORDS`: handed over as
// words of this tag too.
template <bool WORDS>
__device__ __noinline__ void collect_share(Site site, int layer, int stage, int row_groups,
                                           const float* scales, std::uint32_t tag) {
  constexpr int kValues = kOneRow ? 1 : 2;
  const Shared& s = shared();
  const Params& p = s.params;
  const int hidden = hidden_of(p.shape);
  const int rows = rows_of(s.step);
  const std::uint16_t* from = site == kAttentionSite ? p.hidden : p.middle;
  std::uint16_t* to = site == kAttentionSite ? p.middle : p.hidden;
  const std::uint64_t* words = s.pull + (site == kMlpSite ? s.site_words : 0);
  const Share mine(row_groups, s.block, s.blocks);
  const int first = mine.begin * 16;
  const int width = min(mine.end * 16, hidden) - first;
  // Threads side by side take columns, then rows; a share wider than the block goes in pieces.
  const int log_width = kOneRow ? 9 : min(32 - __clz(max(width, 2) - 1), 9);
  static_assert(kThreads == 1 << 9);
  const int together = kThreads >> log_width;
#pragma unroll 1
  for (int c = static_cast<int>(threadIdx.x) & ((1 << log_width) - 1); c < width;
       c += 1 << log_width) {
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) >> log_width; row < rows;
         row += kValues * together) {
      int at[kValues];
      std::uint32_t before[kValues];
      float sum[kValues];
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        at[i] = (row + i * together < rows ? row + i * together : row) * hidden + first + c;
        before[i] = __ldcg(from + at[i]);
      }
      const float factor = scales != nullptr ? __ldg(scales + first + c) : 1.0F;
      if (p.mail.ranks == 2) {
        collect_two<kValues>(words, at, layer, stage, sum);
      } else {
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          sum[i] = collect_four(words + at[i], 0, layer, stage, at[i]);
          if (p.mail.ranks > 4) sum[i] += collect_four(words + at[i], 4, layer, stage, at[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const std::uint16_t value = __bfloat16_as_ushort(
            __float2bfloat16_rn(__uint_as_float(before[i] << 16) + round_bf16(sum[i] * factor)));
        to[at[i]] = value;
        if constexpr (WORDS) {
          if (is_stalled(stage)) continue;
          const int own = row + i * together < rows ? row + i * together : row;
          hand_over_four(
              words_at(site == kAttentionSite ? kMiddleWords : kHiddenWords, own) + (first + c) / 4,
              value, tag);
        }
      }
    }
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS

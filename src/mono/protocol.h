// Hand-offs between ranks and between the workers of a rank: words that carry their own tag, and
// flags for plain data. docs/protocol.md has the reasons and the proof.
//
// A word is 64 bits: a 32-bit payload below a 32-bit tag, stored (release) and loaded (acquire) as
// one atomic, so a reader that sees the tag has the payload. Memory is zero at first; no tag is
// zero, so any payload is legal, NaN patterns included. Payloads are moved as integers.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/deadline.h"

namespace monolayer::mono {

using Word = std::uint64_t;
using Tag = std::uint32_t;

static_assert(std::atomic_ref<Word>::is_always_lock_free);

// Tag of layer `l` in step `e`: the low bits of e (the nonce), then l + 1 in eight bits. Within one
// round of the nonce no two (step, layer) pairs share a tag; between rounds the words are zeroed.
struct TagScheme {
  static constexpr int kLayerBits = 8;
  static constexpr int kLayers = (1 << kLayerBits) - 1;
  static constexpr int kMaxNonceBits = 32 - kLayerBits;

  int nonce_bits = kMaxNonceBits;  // fewer only to reach the wrap in tests

  std::uint64_t nonce(std::uint64_t step) const { return step & ((1ULL << nonce_bits) - 1); }
  bool begins_round(std::uint64_t step) const { return nonce(step) == 0; }
  Tag tag(std::uint64_t step, int layer) const {
    return static_cast<Tag>(nonce(step) << kLayerBits) | static_cast<Tag>(layer + 1);
  }
};

// Where a wait stands, for the report if it fails. `region` outlives the wait.
struct WaitPlace {
  int rank = 0;
  int layer = -1;
  int stage = -1;
  const char* region = "";

  WaitRecord record(std::int64_t index, std::uint64_t expected, std::uint64_t seen) const;
};

inline Word make_word(Tag tag, std::uint32_t payload) {
  return static_cast<Word>(tag) << 32 | payload;
}
inline Tag tag_of(Word word) { return static_cast<Tag>(word >> 32); }
inline std::uint32_t payload_of(Word word) { return static_cast<std::uint32_t>(word); }

inline void put_word(Word* to, Tag tag, std::uint32_t payload) {
  std::atomic_ref<Word>(*to).store(make_word(tag, payload), std::memory_order_release);
}
inline Word load_word(Word* from) {
  return std::atomic_ref<Word>(*from).load(std::memory_order_acquire);
}

// Waits until words `from[0 .. count)` carry `tag`. False: given up, policy.poison is raised (it
// may not be null). Reports index `first_index` + i.
[[nodiscard]] bool poll_words(Word* from, Tag tag, std::uint32_t* payloads, std::size_t count,
                              const WaitPolicy& policy, const WaitPlace& place,
                              std::int64_t first_index = 0);
[[nodiscard]] bool poll_floats(Word* from, Tag tag, float* values, std::size_t count,
                               const WaitPolicy& policy, const WaitPlace& place,
                               std::int64_t first_index = 0);
void put_floats(Word* to, Tag tag, const float* values, std::size_t count);
void clear_words(Word* words, std::size_t count);

// Publishes plain data: everything written before publish() or add() is visible after a wait for
// the value. Values only grow, so a flag is never reset between layers or steps.
class alignas(64) Flag {
 public:
  // By the flag's only writer.
  void publish(std::uint64_t value) { value_.store(value, std::memory_order_release); }
  // By any of several writers: the flag counts their arrivals. Returns the count after.
  std::uint64_t add(std::uint64_t arrivals = 1) {
    return value_.fetch_add(arrivals, std::memory_order_acq_rel) + arrivals;
  }
  std::uint64_t value() const { return value_.load(std::memory_order_acquire); }
  bool reached(std::uint64_t value) const { return this->value() >= value; }
  // False: given up, policy.poison is raised (it may not be null).
  [[nodiscard]] bool wait(std::uint64_t value, const WaitPolicy& policy, const WaitPlace& place,
                          std::int64_t index = 0) const {
    return reached(value) || wait_slowly(value, policy, place, index);
  }

 private:
  bool wait_slowly(std::uint64_t value, const WaitPolicy& policy, const WaitPlace& place,
                   std::int64_t index) const;

  std::atomic<std::uint64_t> value_{0};
};

}  // namespace monolayer::mono

#include "mono/protocol.h"

namespace monolayer::mono {

WaitRecord WaitPlace::record(std::int64_t index, std::uint64_t expected, std::uint64_t seen) const {
  WaitRecord record;
  record.rank = rank;
  record.layer = layer;
  record.stage = stage;
  record.index = index;
  record.expected = expected;
  record.seen = seen;
  return record.set_region(region);
}

namespace {

// The word once it carries `tag`; false when given up.
bool await(Word* from, Tag tag, Word& word, const WaitPolicy& policy, const WaitPlace& place,
           std::int64_t index) {
  Waiter waiter(policy);
  while (tag_of(word = load_word(from)) != tag) {
    if (waiter.again()) continue;
    (void)waiter.give_up(place.record(index, tag, tag_of(word)));
    return false;
  }
  return true;
}

template <typename T>
bool poll(Word* from, Tag tag, T* payloads, std::size_t count, const WaitPolicy& policy,
          const WaitPlace& place, std::int64_t first_index) {
  for (std::size_t i = 0; i < count; ++i) {
    Word word = load_word(from + i);
    if (tag_of(word) != tag) [[unlikely]] {
      const auto index = first_index + static_cast<std::int64_t>(i);
      if (!await(from + i, tag, word, policy, place, index)) return false;
    }
    payloads[i] = std::bit_cast<T>(payload_of(word));
  }
  return true;
}

}  // namespace

bool poll_words(Word* from, Tag tag, std::uint32_t* payloads, std::size_t count,
                const WaitPolicy& policy, const WaitPlace& place, std::int64_t first_index) {
  return poll(from, tag, payloads, count, policy, place, first_index);
}

bool poll_floats(Word* from, Tag tag, float* values, std::size_t count, const WaitPolicy& policy,
                 const WaitPlace& place, std::int64_t first_index) {
  return poll(from, tag, values, count, policy, place, first_index);
}

void put_floats(Word* to, Tag tag, const float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    put_word(to + i, tag, std::bit_cast<std::uint32_t>(values[i]));
  }
}

void clear_words(Word* words, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::atomic_ref<Word>(words[i]).store(0, std::memory_order_relaxed);
  }
}

bool Flag::wait_slowly(std::uint64_t value, const WaitPolicy& policy, const WaitPlace& place,
                       std::int64_t index) const {
  Waiter waiter(policy);
  while (!reached(value)) {
    if (waiter.again()) continue;
    (void)waiter.give_up(place.record(index, value, this->value()));
    return false;
  }
  return true;
}

}  // namespace monolayer::mono

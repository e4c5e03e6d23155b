#include "mono/protocol_mailbox.h"

#include <algorithm>
#include <array>
#include <string>

namespace monolayer::mono {

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kLineWords = kLine / sizeof(Word);
// Counters, one a line, before the words and never cleared: the rank's step, then what each peer
// has written for the fence and for the second fence of a round.
constexpr std::size_t kHeaderLines = 1 + 2 * tp::kMaxRanks;
constexpr std::size_t kHeaderWords = 4096 / sizeof(Word);
static_assert(kHeaderLines * kLineWords <= kHeaderWords);

// Words summed at a time: the copies of eight ranks stay in the first-level cache.
constexpr std::int64_t kSumColumns = 256;
// Columns that one rank sums begin at a multiple of a cache line of words.
constexpr std::int64_t kOwnedUnit = kLineWords;

constexpr std::int64_t kMaxRows = 1 << 20, kMaxColumns = 1 << 24;
constexpr int kMaxSites = 64;

Status out_of(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  return {
      Code::kInvalidArgument, std::string("mailbox ") + field,
      std::to_string(value) + " is not in " + std::to_string(low) + " to " + std::to_string(high)};
}

Status check(const MailboxShape& shape, int ranks) {
  if (shape.rows < 1 || shape.rows > kMaxRows) return out_of("rows", shape.rows, 1, kMaxRows);
  if (shape.columns < 1 || shape.columns > kMaxColumns) {
    return out_of("columns", shape.columns, 1, kMaxColumns);
  }
  if (shape.sites < 2 || shape.sites > kMaxSites) return out_of("sites", shape.sites, 2, kMaxSites);
  if (shape.nonce_bits < 1 || shape.nonce_bits > TagScheme::kMaxNonceBits) {
    return out_of("nonce_bits", shape.nonce_bits, 1, TagScheme::kMaxNonceBits);
  }
  // At most 2^20 * 2^24 * 2^6 * 2^3 words: the product of the four fits 64 bits.
  const std::uint64_t words =
      static_cast<std::uint64_t>(shape.rows) * static_cast<std::uint64_t>(shape.columns) *
      static_cast<std::uint64_t>(shape.sites) * static_cast<std::uint64_t>(ranks);
  constexpr std::uint64_t kMaxWords = 1ULL << 32;
  if (words > kMaxWords) {
    return {Code::kInvalidArgument, "mailbox",
            std::to_string(words) + " words, at most " + std::to_string(kMaxWords)};
  }
  return {};
}

std::uint64_t hash(const MailboxShape& shape) {
  std::uint64_t value = 0;
  for (const std::int64_t field : {shape.rows, shape.columns, std::int64_t{shape.sites},
                                   std::int64_t{shape.nonce_bits}, shape.scatter_from_rows}) {
    value = (value ^ static_cast<std::uint64_t>(field)) * 0x9e3779b97f4a7c15ULL;
    value ^= value >> 29;
  }
  return value;
}

float* row_data(const Block& block, std::int64_t row, std::int64_t column) {
  return block.data + (row - block.row_begin) * block.stride + (column - block.column_begin);
}

}  // namespace

Result<Mailbox> Mailbox::create(tp::Group& group, const MailboxShape& shape,
                                const Deadline& deadline) {
  const tp::Agreement agreement = group.agree(check(shape, group.size()), deadline);
  if (!agreement.ok()) return agreement.status;
  ML_RETURN_IF_ERROR(group.agree_same(hash(shape), "shape of the mailbox", deadline));
  Mailbox mailbox;
  mailbox.shape_ = shape;
  mailbox.scheme_.nonce_bits = shape.nonce_bits;
  mailbox.rank_ = group.rank();
  mailbox.size_ = group.size();
  const std::size_t words = kHeaderWords + (group.size() == 1 ? 0 : mailbox.word_count());
  ML_ASSIGN_OR_RETURN(mailbox.region_, group.allocate(words * sizeof(Word), deadline));
  return mailbox;
}

Status Mailbox::release(tp::Group& group, const Deadline& deadline) {
  return group.release(region_, deadline);
}

std::size_t Mailbox::word_count() const {
  return static_cast<std::size_t>(shape_.rows * shape_.columns * shape_.sites * size_);
}

Word* Mailbox::words(int owner, int site, int writer, std::int64_t row, std::int64_t column) const {
  Word* base = reinterpret_cast<Word*>(region_.base[static_cast<std::size_t>(owner)]);
  const std::int64_t block = (std::int64_t{site} * size_ + writer) * shape_.rows + row;
  return base + kHeaderWords + block * shape_.columns + column;
}

Word* Mailbox::counter(int owner, int which) const {
  Word* base = reinterpret_cast<Word*>(region_.base[static_cast<std::size_t>(owner)]);
  return base + static_cast<std::size_t>(which) * kLineWords;
}

std::int64_t Mailbox::owned(int rank) const {
  const std::int64_t units = (shape_.columns + kOwnedUnit - 1) / kOwnedUnit;
  return std::min(shape_.columns, rank * units / size_ * kOwnedUnit);
}

std::uint64_t Mailbox::step() const {
  if (region_.bytes == 0) return 0;
  return std::atomic_ref<Word>(*counter(rank_, 0)).load(std::memory_order_relaxed);
}

bool Mailbox::begin_step(const WaitPolicy& policy) {
  if (region_.bytes == 0) return true;
  std::atomic_ref<Word> own(*counter(rank_, 0));
  const std::uint64_t next = own.load(std::memory_order_relaxed) + 1;
  own.store(next, std::memory_order_relaxed);
  if (size_ == 1) return true;
  if (!fence(0, next, policy)) return false;
  if (!scheme_.begins_round(next)) return true;
  // Between the fences no rank pushes: all have left the step before, none has begun this one.
  clear_words(words(rank_, 0, 0, 0, 0), word_count());
  return fence(1, next, policy);
}

bool Mailbox::fence(int which, std::uint64_t step, const WaitPolicy& policy) {
  const int first = 1 + which * tp::kMaxRanks;
  for (int r = 0; r < size_; ++r) {
    std::atomic_ref<Word>(*counter(r, first + rank_)).store(step, std::memory_order_release);
  }
  for (int r = 0; r < size_; ++r) {
    std::atomic_ref<Word> arrived(*counter(rank_, first + r));
    Waiter waiter(policy);
    while (arrived.load(std::memory_order_acquire) < step) {
      if (waiter.again()) continue;
      const WaitPlace place{rank_, -1, -1, which == 0 ? "fence" : "fence of a round"};
      (void)waiter.give_up(place.record(r, step, arrived.load(std::memory_order_relaxed)));
      return false;
    }
  }
  return true;
}

void Mailbox::send(const Exchange& exchange, const Block& block) const {
  if (size_ == 1) return;
  // Peers are served in a different order by each rank, so that they do not all crowd one memory.
  for (int hop = 1; hop < size_; ++hop) {
    const int peer = (rank_ + hop) % size_;
    std::int64_t begin = block.column_begin;
    std::int64_t end = block.column_end;
    if (exchange.scatter) {
      begin = std::max(begin, owned(peer));
      end = std::min(end, owned(peer + 1));
    }
    if (begin >= end) continue;
    for (std::int64_t row = block.row_begin; row < block.row_end; ++row) {
      put_floats(words(peer, exchange.site, rank_, row, begin), exchange.tag,
                 row_data(block, row, begin), static_cast<std::size_t>(end - begin));
    }
  }
}

// values[0 .. end - begin): this rank's in, the total out.
bool Mailbox::sum(const Exchange& exchange, std::int64_t row, std::int64_t begin, std::int64_t end,
                  float* values, const WaitPolicy& policy, const WaitPlace& place) const {
  alignas(64) std::array<float, tp::kMaxRanks * kSumColumns> copies;
  for (std::int64_t at = begin; at < end; at += kSumColumns) {
    const auto count = static_cast<std::size_t>(std::min(kSumColumns, end - at));
    float* own = values + (at - begin);
    std::array<const float*, tp::kMaxRanks> roots{};
    for (int r = 0; r < size_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (r == rank_) {
        roots[i] = own;
        continue;
      }
      float* copy = copies.data() + i * kSumColumns;
      Word* from = words(rank_, exchange.site, r, row, at);
      const std::int64_t index = from - words(rank_, exchange.site, 0, 0, 0);
      if (!poll_floats(from, exchange.tag, copy, count, policy, place, index)) return false;
      roots[i] = copy;
    }
    tp::sum_eighths({roots.data(), static_cast<std::size_t>(size_)}, {own, count});
  }
  return true;
}

bool Mailbox::reduce(const Exchange& exchange, const Block& block, const WaitPolicy& policy,
                     const WaitPlace& place) const {
  if (size_ == 1) return true;
  std::int64_t begin = block.column_begin;
  std::int64_t end = block.column_end;
  if (exchange.scatter) {
    begin = std::max(begin, owned(rank_));
    end = std::min(end, owned(rank_ + 1));
  }
  if (begin >= end) return true;
  for (std::int64_t row = block.row_begin; row < block.row_end; ++row) {
    float* values = row_data(block, row, begin);
    if (!sum(exchange, row, begin, end, values, policy, place)) return false;
    if (!exchange.scatter) continue;
    // The words of this rank's own columns are free in the peers' regions: nobody sends them there.
    for (int hop = 1; hop < size_; ++hop) {
      const int peer = (rank_ + hop) % size_;
      put_floats(words(peer, exchange.site, rank_, row, begin), exchange.tag, values,
                 static_cast<std::size_t>(end - begin));
    }
  }
  return true;
}

bool Mailbox::gather(const Exchange& exchange, const Block& block, const WaitPolicy& policy,
                     const WaitPlace& place) const {
  if (size_ == 1 || !exchange.scatter) return true;
  for (int hop = 1; hop < size_; ++hop) {
    const int peer = (rank_ + hop) % size_;
    const std::int64_t begin = std::max(block.column_begin, owned(peer));
    const std::int64_t end = std::min(block.column_end, owned(peer + 1));
    if (begin >= end) continue;
    for (std::int64_t row = block.row_begin; row < block.row_end; ++row) {
      Word* from = words(rank_, exchange.site, peer, row, begin);
      const std::int64_t index = from - words(rank_, exchange.site, 0, 0, 0);
      if (!poll_floats(from, exchange.tag, row_data(block, row, begin),
                       static_cast<std::size_t>(end - begin), policy, place, index)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace monolayer::mono

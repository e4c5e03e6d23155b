// Mailboxes: a region of every rank that its peers push tagged float32 words into, the fence that
// begins a step, and the all-reduce inside a layer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/deadline.h"
#include "core/status.h"
#include "mono/protocol.h"
#include "tp/group.h"

namespace monolayer::mono {

struct MailboxShape {
  std::int64_t rows = 16;    // most rows of a step
  std::int64_t columns = 0;  // values of a row (the hidden size)
  int sites = 2;             // exchanges that alternate: attention output, MLP output
  int nonce_bits = TagScheme::kMaxNonceBits;
  // Steps of this many rows or more reduce-scatter and gather; it must be the same on all ranks.
  // Between processor cores that is the faster variant at every row count; a device whose stores
  // cost less than a hop wants more.
  std::int64_t scatter_from_rows = 1;
};

// Rows [row_begin, row_end) x columns [column_begin, column_end) of one exchange; `data` holds the
// first of them, rows `stride` values apart.
struct Block {
  std::int64_t row_begin = 0, row_end = 0;
  std::int64_t column_begin = 0, column_end = 0;
  float* data = nullptr;
  std::int64_t stride = 0;
};

// One exchange of one layer in the current step. Two exchanges in a row must not use the same site,
// and a rank may push a word of one exchange only after it has read that word of the one before.
struct Exchange {
  int site = 0;
  Tag tag = 0;
  bool scatter = false;  // Mailbox::scatters(rows)
};

// Calls on disjoint blocks may run on several threads at once. A `false` means that the wait was
// given up and policy.poison, the group's poison, is raised.
class Mailbox {
 public:
  Mailbox() = default;  // of a group of one: every reduction leaves its data as it is

  // Collective. kInvalidArgument naming the field and its bound, on all ranks.
  static Result<Mailbox> create(tp::Group& group, const MailboxShape& shape,
                                const Deadline& deadline = Deadline());
  // Collective: barrier, unmap, barrier, free.
  Status release(tp::Group& group, const Deadline& deadline = Deadline());

  // Collective, on one thread of the rank, when all its workers have left the step before:
  // advances the step counter, which lies in the rank's own region, and waits until every peer has
  // done so too. Abandoned steps need nothing else. When the nonce begins a new round it also
  // clears the words and fences again.
  [[nodiscard]] bool begin_step(const WaitPolicy& policy);
  std::uint64_t step() const;  // steps begun
  Tag tag(int layer) const { return scheme_.tag(step(), layer); }
  bool scatters(std::int64_t rows) const { return size_ > 1 && rows >= shape_.scatter_from_rows; }
  Exchange exchange(int site, int layer, std::int64_t rows) const {
    return {site, tag(layer), scatters(rows)};
  }

  // In: the root of this rank's subtree; out: the sum of all ranks in the fixed tree, the same bits
  // on every rank and in both variants. A worker with several blocks calls send() for all of them,
  // then reduce() for all, then gather() for all; so no order of blocks can wait in a circle.
  void send(const Exchange& exchange, const Block& block) const;
  [[nodiscard]] bool reduce(const Exchange& exchange, const Block& block, const WaitPolicy& policy,
                            const WaitPlace& place) const;
  [[nodiscard]] bool gather(const Exchange& exchange, const Block& block, const WaitPolicy& policy,
                            const WaitPlace& place) const;
  // The three in a row, for a worker with one block.
  [[nodiscard]] bool all_reduce(const Exchange& exchange, const Block& block,
                                const WaitPolicy& policy, const WaitPlace& place) const {
    send(exchange, block);
    return reduce(exchange, block, policy, place) && gather(exchange, block, policy, place);
  }

  // Words of (site, row, column) in the region of `owner` that `writer` pushes.
  Word* words(int owner, int site, int writer, std::int64_t row, std::int64_t column) const;
  std::size_t bytes() const { return region_.bytes; }  // of each rank

 private:
  // Columns [owned(r), owned(r + 1)) are summed by rank r when scattered.
  std::int64_t owned(int rank) const;
  std::size_t word_count() const;
  Word* counter(int owner, int which) const;
  bool fence(int which, std::uint64_t step, const WaitPolicy& policy);
  bool sum(const Exchange& exchange, std::int64_t row, std::int64_t begin, std::int64_t end,
           float* values, const WaitPolicy& policy, const WaitPlace& place) const;

  MailboxShape shape_;
  TagScheme scheme_;
  int rank_ = 0;
  int size_ = 1;
  tp::SymmetricRegion region_;
};

}  // namespace monolayer::mono

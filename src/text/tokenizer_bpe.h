// Byte pair encoding of one piece: from symbols to tokens by the merges, most important first.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace monolayer {

// Pairs of neighbouring tokens and what they merge into. Rank 0 merges first.
class MergeTable {
 public:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  struct Entry {
    std::uint64_t pair = 0;
    std::uint32_t rank = kNone;  // kNone marks an empty slot
    std::int32_t id = 0;         // the merged token
  };

  // Room for `count` merges.
  explicit MergeTable(std::size_t count = 0);
  // False when the pair is there already.
  bool insert(std::int32_t left, std::int32_t right, std::uint32_t rank, std::int32_t id);
  // An entry with rank kNone when the pair doesn't merge.
  const Entry& find(std::int32_t left, std::int32_t right) const;

 private:
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t pair) const {
    return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15ULL) >> shift_);
  }
  std::vector<Entry> slots_;
  unsigned shift_ = 63;
};

// Merges the symbols of one piece to the end and appends the tokens to `out`. At equal rank the
// leftmost pair goes first. Time n log n in the number of symbols; `symbols` is used up.
class BpeMerger {
 public:
  void merge(std::vector<std::int32_t>& symbols, const MergeTable& table,
             std::vector<std::int32_t>& out);

 private:
  void merge_short(std::vector<std::int32_t>& symbols, const MergeTable& table);
  void merge_long(std::vector<std::int32_t>& symbols, const MergeTable& table,
                  std::vector<std::int32_t>& out);

  std::vector<MergeTable::Entry> pairs_;  // merge_short: of each symbol with the next
  std::vector<std::uint32_t> previous_;   // merge_long: a linked list of what is left
  std::vector<std::uint32_t> next_;
  std::vector<std::uint64_t> heap_;  // rank in the upper half, position in the lower
};

// Remembers the tokens of short pieces: direct mapped, so bounded, and overwritten freely.
class PieceCache {
 public:
  static constexpr std::size_t kMaxBytes = 24;
  static constexpr std::size_t kMaxTokens = 8;

  PieceCache() : entries_(kEntries) {}
  // The tokens of `piece`, or an empty span when they aren't remembered.
  std::span<const std::int32_t> find(std::string_view piece) const;
  // Does nothing when the piece or its tokens are too long to keep.
  void insert(std::string_view piece, std::span<const std::int32_t> tokens);

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 15;
  struct Entry {
    std::uint64_t words[3] = {0, 0, 0};  // the piece, padded with zeros
    std::int32_t tokens[kMaxTokens] = {};
    std::uint8_t bytes = 0;
    std::uint8_t count = 0;
  };
  struct Key {
    std::uint64_t words[3] = {0, 0, 0};
    std::size_t slot = 0;
  };
  static Key key_of(std::string_view piece);
  std::vector<Entry> entries_;
};

}  // namespace monolayer

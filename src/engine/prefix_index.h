// Which block holds which 128 tokens after which prefix: the lookup behind the prefix cache.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "m3/config.h"

namespace monolayer::engine {

// Name of a prefix: of the salt for an empty one, else of (name of the prefix before, its last
// block's tokens).
struct PrefixHash {
  std::uint64_t low = 0, high = 0;
  bool operator==(const PrefixHash&) const = default;
};

// Requests with another salt never share a block. The empty salt is an ordinary one.
PrefixHash prefix_root(std::string_view salt);
// `tokens`: the 128 of one block.
PrefixHash prefix_extend(const PrefixHash& parent, std::span<const std::int32_t> tokens);

// A hash alone is never believed: an entry is found only if its tokens and its parent are the ones
// asked for.
class PrefixIndex {
 public:
  explicit PrefixIndex(std::int64_t blocks) : entries_(static_cast<std::size_t>(blocks)) {}

  // The block of `tokens` after `parent`, or -1.
  std::int32_t find(const PrefixHash& parent, std::span<const std::int32_t> tokens) const;
  // False, and nothing changes, if that content has a block already.
  bool insert(std::int32_t block, const PrefixHash& parent, std::span<const std::int32_t> tokens);
  void erase(std::int32_t block);
  bool contains(std::int32_t block) const { return entry(block).indexed; }
  std::int64_t size() const { return static_cast<std::int64_t>(blocks_.size()); }

 private:
  struct Entry {
    bool indexed = false;
    PrefixHash hash, parent;
    std::array<std::int32_t, m3::kPageTokens> tokens{};
  };
  struct HashOf {
    std::size_t operator()(const PrefixHash& h) const { return static_cast<std::size_t>(h.low); }
  };
  const Entry& entry(std::int32_t block) const { return entries_[static_cast<std::size_t>(block)]; }

  std::vector<Entry> entries_;  // by block id
  std::unordered_map<PrefixHash, std::int32_t, HashOf> blocks_;
};

}  // namespace monolayer::engine

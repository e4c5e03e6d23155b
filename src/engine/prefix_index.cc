#include "engine/prefix_index.h"

#include <algorithm>
#include <cstring>

#include <xxhash.h>

namespace monolayer::engine {
namespace {

PrefixHash hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data, bytes, seed);
  return {hash.low64, hash.high64};
}

}  // namespace

PrefixHash prefix_root(std::string_view salt) { return hash_bytes(salt.data(), salt.size(), 1); }

PrefixHash prefix_extend(const PrefixHash& parent, std::span<const std::int32_t> tokens) {
  std::array<unsigned char, sizeof(PrefixHash) + m3::kPageTokens * sizeof(std::int32_t)> bytes;
  std::memcpy(bytes.data(), &parent, sizeof(parent));
  std::memcpy(bytes.data() + sizeof(parent), tokens.data(), tokens.size_bytes());
  return hash_bytes(bytes.data(), sizeof(parent) + tokens.size_bytes(), 2);
}

std::int32_t PrefixIndex::find(const PrefixHash& parent,
                               std::span<const std::int32_t> tokens) const {
  const auto at = blocks_.find(prefix_extend(parent, tokens));
  if (at == blocks_.end()) return -1;
  const Entry& found = entry(at->second);
  const bool same =
      found.parent == parent && std::equal(tokens.begin(), tokens.end(), found.tokens.begin());
  return same ? at->second : -1;
}

bool PrefixIndex::insert(std::int32_t block, const PrefixHash& parent,
                         std::span<const std::int32_t> tokens) {
  Entry& slot = entries_[static_cast<std::size_t>(block)];
  const PrefixHash hash = prefix_extend(parent, tokens);
  if (slot.indexed || !blocks_.try_emplace(hash, block).second) return false;
  slot.indexed = true;
  slot.hash = hash;
  slot.parent = parent;
  std::copy(tokens.begin(), tokens.end(), slot.tokens.begin());
  return true;
}

void PrefixIndex::erase(std::int32_t block) {
  Entry& slot = entries_[static_cast<std::size_t>(block)];
  if (!slot.indexed) return;
  blocks_.erase(slot.hash);
  slot.indexed = false;
}

}  // namespace monolayer::engine

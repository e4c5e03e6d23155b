#include "text/tokenizer_bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

namespace monolayer {

MergeTable::MergeTable(std::size_t count) {
  // At most half full, so that a search for an absent pair ends soon.
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(2 * count, 2));
  slots_.resize(size);
  shift_ = 64U - static_cast<unsigned>(std::countr_zero(size));
}

bool MergeTable::insert(std::int32_t left, std::int32_t right, std::uint32_t rank,
                        std::int32_t id) {
  const std::uint64_t pair = key(left, right);
  std::size_t at = slot(pair);
  while (slots_[at].rank != kNone) {
    if (slots_[at].pair == pair) return false;
    at = (at + 1) & (slots_.size() - 1);
  }
  slots_[at] = {pair, rank, id};
  return true;
}

const MergeTable::Entry& MergeTable::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = key(left, right);
  std::size_t at = slot(pair);
  while (slots_[at].rank != kNone && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  return slots_[at];
}

namespace {

// Up to here a scan for the best pair beats a heap.
constexpr std::size_t kShort = 48;

}  // namespace

void BpeMerger::merge(std::vector<std::int32_t>& symbols, const MergeTable& table,
                      std::vector<std::int32_t>& out) {
  if (symbols.size() > kShort) {
    merge_long(symbols, table, out);
    return;
  }
  if (symbols.size() > 1) merge_short(symbols, table);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

void BpeMerger::merge_short(std::vector<std::int32_t>& symbols, const MergeTable& table) {
  pairs_.resize(symbols.size() - 1);
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    pairs_[i] = table.find(symbols[i], symbols[i + 1]);
  }
  while (!pairs_.empty()) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < pairs_.size(); ++i) {
      if (pairs_[i].rank < pairs_[best].rank) best = i;
    }
    if (pairs_[best].rank == MergeTable::kNone) return;
    symbols[best] = pairs_[best].id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) pairs_[best - 1] = table.find(symbols[best - 1], symbols[best]);
    if (best < pairs_.size()) pairs_[best] = table.find(symbols[best], symbols[best + 1]);
  }
}

void BpeMerger::merge_long(std::vector<std::int32_t>& symbols, const MergeTable& table,
                           std::vector<std::int32_t>& out) {
  const auto count = static_cast<std::uint32_t>(symbols.size());
  constexpr std::int32_t kGone = -1;
  previous_.resize(count);
  next_.resize(count);
  heap_.clear();
  const auto earlier = std::greater<>();
  const auto offer = [&](std::uint32_t left, std::uint32_t right) {
    const std::uint32_t rank = table.find(symbols[left], symbols[right]).rank;
    if (rank == MergeTable::kNone) return false;
    heap_.push_back((static_cast<std::uint64_t>(rank) << 32) | left);
    return true;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    previous_[i] = i - 1;  // of the first: never read, it is checked for 0
    next_[i] = i + 1;
    if (i + 1 < count) offer(i, i + 1);
  }
  std::make_heap(heap_.begin(), heap_.end(), earlier);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), earlier);
    const auto left = static_cast<std::uint32_t>(heap_.back());
    const auto rank = static_cast<std::uint32_t>(heap_.back() >> 32);
    heap_.pop_back();
    const std::uint32_t right = next_[left];
    if (symbols[left] == kGone || right >= count) continue;
    const MergeTable::Entry& entry = table.find(symbols[left], symbols[right]);
    if (entry.rank != rank) continue;  // one of the two has changed since this was offered
    symbols[left] = entry.id;
    symbols[right] = kGone;
    next_[left] = next_[right];
    if (next_[left] < count) {
      previous_[next_[left]] = left;
      if (offer(left, next_[left])) std::push_heap(heap_.begin(), heap_.end(), earlier);
    }
    if (left > 0 && offer(previous_[left], left)) {
      std::push_heap(heap_.begin(), heap_.end(), earlier);
    }
  }
  for (const std::int32_t symbol : symbols) {
    if (symbol != kGone) out.push_back(symbol);
  }
}

PieceCache::Key PieceCache::key_of(std::string_view piece) {
  Key key;
  std::memcpy(key.words, piece.data(), piece.size());
  std::uint64_t hash = piece.size();
  for (const std::uint64_t word : key.words) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  key.slot = static_cast<std::size_t>(hash) & (kEntries - 1);
  return key;
}

std::span<const std::int32_t> PieceCache::find(std::string_view piece) const {
  if (piece.size() > kMaxBytes) return {};
  const Key key = key_of(piece);
  const Entry& entry = entries_[key.slot];
  if (entry.bytes != piece.size() || std::memcmp(entry.words, key.words, sizeof key.words) != 0) {
    return {};
  }
  return {entry.tokens, entry.count};
}

void PieceCache::insert(std::string_view piece, std::span<const std::int32_t> tokens) {
  if (piece.empty() || piece.size() > kMaxBytes || tokens.size() > kMaxTokens) return;
  const Key key = key_of(piece);
  Entry& entry = entries_[key.slot];
  std::memcpy(entry.words, key.words, sizeof key.words);
  std::copy(tokens.begin(), tokens.end(), entry.tokens);
  entry.bytes = static_cast<std::uint8_t>(piece.size());
  entry.count = static_cast<std::uint8_t>(tokens.size());
}

}  // namespace monolayer

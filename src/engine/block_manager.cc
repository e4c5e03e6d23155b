#include "engine/block_manager.h"

#include <algorithm>
#include <string>

namespace monolayer::engine {
namespace {

constexpr std::int64_t kBlock = m3::kPageTokens;

std::span<const std::int32_t> block_tokens(std::span<const std::int32_t> tokens, std::int64_t i) {
  return tokens.subspan(static_cast<std::size_t>(i * kBlock), static_cast<std::size_t>(kBlock));
}

Status broken(std::int32_t block, const char* what) {
  return {Code::kInternal, "block " + std::to_string(block), what};
}

}  // namespace

BlockManager::BlockManager(std::int64_t blocks, bool prefix_caching)
    : prefix_caching_(prefix_caching),
      index_(blocks),
      references_(static_cast<std::size_t>(blocks), 0),
      generations_(static_cast<std::size_t>(blocks), 0),
      place_(static_cast<std::size_t>(blocks), cached_free_.end()) {
  blank_.reserve(static_cast<std::size_t>(blocks));
  for (std::int64_t i = blocks; i-- > 0;) blank_.push_back(static_cast<std::int32_t>(i));
}

void BlockManager::take_cached(std::int32_t block) {
  if (references_[index_of(block)]++ > 0) return;
  cached_free_.erase(place_[index_of(block)]);
  place_[index_of(block)] = cached_free_.end();
}

BlockManager::Hit BlockManager::probe(std::span<const std::int32_t> tokens, std::int64_t max_tokens,
                                      std::string_view salt) const {
  Hit hit;
  if (!prefix_caching_) return hit;
  PrefixHash chain = prefix_root(salt);
  const std::int64_t limit = std::min(max_tokens, static_cast<std::int64_t>(tokens.size()));
  for (std::int64_t i = 0; (i + 1) * kBlock <= limit; ++i) {
    const auto part = block_tokens(tokens, i);
    const std::int32_t block = index_.find(chain, part);
    if (block < 0) break;
    chain = prefix_extend(chain, part);
    hit.tokens += kBlock;
    if (references_[index_of(block)] == 0) ++hit.idle_blocks;
  }
  return hit;
}

std::int64_t BlockManager::start(BlockTable& table, std::span<const std::int32_t> tokens,
                                 std::int64_t max_tokens, std::string_view salt) {
  table.chain = prefix_root(salt);
  table.chained = true;
  table.committed = 0;
  if (!prefix_caching_) return 0;
  const std::int64_t limit = std::min(max_tokens, static_cast<std::int64_t>(tokens.size()));
  for (std::int64_t i = 0; (i + 1) * kBlock <= limit; ++i) {
    const auto part = block_tokens(tokens, i);
    const std::int32_t block = index_.find(table.chain, part);
    if (block < 0) break;
    take_cached(block);
    table.blocks.push_back(block);
    table.generations.push_back(generations_[index_of(block)]);
    table.chain = prefix_extend(table.chain, part);
    ++table.committed;
  }
  return table.committed * kBlock;
}

std::int32_t BlockManager::hand_out() {
  std::int32_t block = 0;
  if (!blank_.empty()) {
    block = blank_.back();
    blank_.pop_back();
  } else {
    block = cached_free_.front();
    cached_free_.pop_front();
    place_[index_of(block)] = cached_free_.end();
    index_.erase(block);
    if (on_dead_) on_dead_(block);
  }
  references_[index_of(block)] = 1;
  ++generations_[index_of(block)];
  return block;
}

bool BlockManager::extend(BlockTable& table, std::int64_t blocks) {
  const std::int64_t more = blocks - table.size();
  if (more > available()) return false;
  for (std::int64_t i = 0; i < more; ++i) {
    const std::int32_t block = hand_out();
    table.blocks.push_back(block);
    table.generations.push_back(generations_[index_of(block)]);
  }
  return true;
}

void BlockManager::commit(BlockTable& table, std::span<const std::int32_t> tokens) {
  if (!prefix_caching_ || !table.chained) return;
  const std::int64_t full = static_cast<std::int64_t>(tokens.size()) / kBlock;
  for (; table.committed < full; ++table.committed) {
    const auto part = block_tokens(tokens, table.committed);
    index_.insert(table.blocks[static_cast<std::size_t>(table.committed)], table.chain, part);
    table.chain = prefix_extend(table.chain, part);
  }
}

void BlockManager::drop(std::int32_t block) {
  if (--references_[index_of(block)] > 0) return;
  if (index_.contains(block)) {
    place_[index_of(block)] = cached_free_.insert(cached_free_.end(), block);
  } else {
    if (on_dead_) on_dead_(block);
    blank_.push_back(block);
  }
}

void BlockManager::shrink(BlockTable& table, std::int64_t blocks) {
  while (table.size() > std::max(blocks, table.committed)) {
    drop(table.blocks.back());
    table.blocks.pop_back();
    table.generations.pop_back();
  }
}

void BlockManager::release(BlockTable& table) {
  while (!table.blocks.empty()) {
    drop(table.blocks.back());
    table.blocks.pop_back();
  }
  table = BlockTable{};
}

void BlockManager::forget_cached() {
  for (std::int32_t block = 0; block < static_cast<std::int32_t>(total()); ++block) {
    if (!index_.contains(block)) continue;
    index_.erase(block);
    if (references_[index_of(block)] > 0) continue;
    cached_free_.erase(place_[index_of(block)]);
    place_[index_of(block)] = cached_free_.end();
    if (on_dead_) on_dead_(block);
    blank_.push_back(block);
  }
}

Status BlockManager::check_writable(const BlockTable& table, std::int64_t begin,
                                    std::int64_t end) const {
  if (end > table.size() * kBlock)
    return {Code::kInternal, "block table",
            "has " + std::to_string(table.size()) + " blocks, " + std::to_string(end) +
                " tokens need more"};
  for (std::int64_t i = 0; i < table.size(); ++i) {
    const std::int32_t block = table.blocks[static_cast<std::size_t>(i)];
    if (block < 0 || block >= total()) return broken(block, "does not exist");
    if (table.generations[static_cast<std::size_t>(i)] != generations_[index_of(block)])
      return broken(block, "was given to another sequence: the table is stale");
    const bool written = (i + 1) * kBlock > begin && i * kBlock < end;
    if (!written) continue;
    if (references_[index_of(block)] != 1) return broken(block, "is shared and would be written");
    if (index_.contains(block)) return broken(block, "is findable and would be written");
  }
  return ok_status();
}

Status BlockManager::check_books() const {
  std::vector<int> listed(references_.size(), 0);
  for (const std::int32_t block : blank_) {
    ++listed[index_of(block)];
    if (index_.contains(block)) return broken(block, "is blank but findable");
  }
  for (const std::int32_t block : cached_free_) {
    ++listed[index_of(block)];
    if (!index_.contains(block)) return broken(block, "is kept for its content but not findable");
  }
  for (std::int32_t block = 0; block < static_cast<std::int32_t>(total()); ++block) {
    if (references_[index_of(block)] < 0) return broken(block, "has a negative count");
    const int expected = references_[index_of(block)] == 0 ? 1 : 0;
    if (listed[index_of(block)] != expected)
      return broken(block, expected == 1 ? "is lost" : "is both held and free");
  }
  return ok_status();
}

}  // namespace monolayer::engine

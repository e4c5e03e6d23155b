// Who holds which block of the caches. A block is 128 tokens of every cache under one id; a full
// one whose tokens are final may be shared, the one being written never is.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "engine/prefix_index.h"

namespace monolayer::engine {

// The blocks of one sequence, in order. A generation names one use of a block: a table whose
// generations are no longer those of the manager is stale.
struct BlockTable {
  std::vector<std::int32_t> blocks;
  std::vector<std::uint64_t> generations;
  PrefixHash chain;            // name of the first `committed` blocks
  std::int64_t committed = 0;  // blocks whose tokens are known to be final and computed
  bool chained = false;        // `chain` was started from a salt
  std::int64_t size() const { return static_cast<std::int64_t>(blocks.size()); }
};

class BlockManager {
 public:
  BlockManager(std::int64_t blocks, bool prefix_caching);

  std::int64_t total() const { return static_cast<std::int64_t>(references_.size()); }
  // Blocks that nobody holds, cached content or not: all of them can be handed out.
  std::int64_t available() const {
    return static_cast<std::int64_t>(blank_.size() + cached_free_.size());
  }
  std::int64_t indexed() const { return index_.size(); }
  bool prefix_caching() const { return prefix_caching_; }

  // Starts an empty `table` with the longest cached prefix of `tokens`, of whole blocks and at most
  // `max_tokens`. Returns the tokens found. Without prefix caching only the chain is started.
  std::int64_t start(BlockTable& table, std::span<const std::int32_t> tokens,
                     std::int64_t max_tokens, std::string_view salt);
  // How many of those tokens a start() would find now, and how many of their blocks nobody holds
  // (they count as available until then).
  struct Hit {
    std::int64_t tokens = 0, idle_blocks = 0;
  };
  Hit probe(std::span<const std::int32_t> tokens, std::int64_t max_tokens,
            std::string_view salt) const;
  // Extends `table` to `blocks` entries; false, and unchanged, when there are not that many.
  bool extend(BlockTable& table, std::int64_t blocks);
  // Gives back what `table` holds beyond `blocks` entries, none of which may be committed.
  void shrink(BlockTable& table, std::int64_t blocks);
  // `tokens`: all of the sequence that are final and whose cache entries are complete. Full blocks
  // of them become findable; content that has a block already keeps that one.
  void commit(BlockTable& table, std::span<const std::int32_t> tokens);
  // Gives everything back, last block first, so that a chain's tail is reused before its head.
  // Content stays findable until its block is handed out again.
  void release(BlockTable& table);
  // Forgets all cached content; held blocks stay held.
  void forget_cached();

  // kInternal unless every entry is current and the entries of tokens [begin, end) are held once
  // and not findable: what a step must hold before it writes.
  Status check_writable(const BlockTable& table, std::int64_t begin, std::int64_t end) const;
  // kInternal naming the block if the books do not balance.
  Status check_books() const;

  std::int32_t references(std::int32_t block) const { return references_[index_of(block)]; }
  std::uint64_t generation(std::int32_t block) const { return generations_[index_of(block)]; }
  // Called with every block whose content nobody may read any more.
  void on_dead(std::function<void(std::int32_t)> callback) { on_dead_ = std::move(callback); }

 private:
  static std::size_t index_of(std::int32_t block) { return static_cast<std::size_t>(block); }
  void take_cached(std::int32_t block);
  std::int32_t hand_out();
  void drop(std::int32_t block);

  bool prefix_caching_;
  PrefixIndex index_;
  std::vector<std::int32_t> references_;
  std::vector<std::uint64_t> generations_;
  std::vector<std::int32_t> blank_;      // free without content; the next one is at the end
  std::list<std::int32_t> cached_free_;  // free with findable content, least recently freed first
  std::vector<std::list<std::int32_t>::iterator> place_;  // in cached_free_, else end()
  std::function<void(std::int32_t)> on_dead_;
};

}  // namespace monolayer::engine

#include "engine/block_manager.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace monolayer::engine {
namespace {

std::vector<std::int32_t> tokens_of(std::int64_t count, std::int32_t first) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<std::int32_t>(i));
  return tokens;
}

TEST(BlockManager, HandsOutTheLowestBlocksFirstAndTakesThemBack) {
  BlockManager blocks(4, true);
  BlockTable a, b;
  ASSERT_TRUE(blocks.extend(a, 2));
  EXPECT_EQ(a.blocks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_FALSE(blocks.extend(b, 3));
  EXPECT_TRUE(b.blocks.empty());
  ASSERT_TRUE(blocks.extend(b, 2));
  EXPECT_EQ(blocks.available(), 0);
  blocks.release(a);
  EXPECT_EQ(blocks.available(), 2);
  EXPECT_TRUE(a.blocks.empty());
  EXPECT_TRUE(blocks.check_books().ok());
}

TEST(BlockManager, FindsWholeBlocksOfTheSamePrefixAndSaltOnly) {
  BlockManager blocks(8, true);
  const auto tokens = tokens_of(300, 0);
  BlockTable a;
  EXPECT_EQ(blocks.start(a, tokens, 299, ""), 0);
  ASSERT_TRUE(blocks.extend(a, 3));
  blocks.commit(a, tokens);
  EXPECT_EQ(blocks.indexed(), 2);

  BlockTable b;
  EXPECT_EQ(blocks.start(b, tokens, 299, ""), 256);
  EXPECT_EQ(b.blocks, (std::vector<std::int32_t>{a.blocks[0], a.blocks[1]}));
  EXPECT_EQ(blocks.references(a.blocks[0]), 2);
  // The last token is always computed: a hit of the whole prompt loses its last block.
  BlockTable c;
  EXPECT_EQ(blocks.start(c, std::span(tokens).first(256), 255, ""), 128);
  auto other = tokens;
  other[5] = 7777;
  BlockTable d, e;
  EXPECT_EQ(blocks.start(d, other, 299, ""), 0);
  EXPECT_EQ(blocks.start(e, tokens, 299, "tenant"), 0);
  // The second block's tokens after another first block are another prefix.
  BlockTable f;
  EXPECT_EQ(blocks.start(f, std::span(tokens).subspan(128), 172, ""), 0);
  for (BlockTable* table : {&a, &b, &c, &d, &e, &f}) blocks.release(*table);
  EXPECT_EQ(blocks.available(), 8);
  EXPECT_TRUE(blocks.check_books().ok());
}

TEST(BlockManager, EvictsTheTailOfTheLeastRecentlyFreedChainFirst) {
  BlockManager blocks(4, true);
  const auto first = tokens_of(256, 0), second = tokens_of(256, 1000);
  for (const auto* tokens : {&first, &second}) {
    BlockTable table;
    blocks.start(table, *tokens, 255, "");
    ASSERT_TRUE(blocks.extend(table, 2));
    blocks.commit(table, *tokens);
    blocks.release(table);
  }
  EXPECT_EQ(blocks.indexed(), 4);
  BlockTable taken;
  ASSERT_TRUE(blocks.extend(taken, 1));
  EXPECT_EQ(blocks.probe(first, 256, "").tokens, 128);
  EXPECT_EQ(blocks.probe(second, 256, "").tokens, 256);
  ASSERT_TRUE(blocks.extend(taken, 3));
  EXPECT_EQ(blocks.probe(first, 256, "").tokens, 0);
  EXPECT_EQ(blocks.probe(second, 256, "").tokens, 128);
}

TEST(BlockManager, RefusesWritesToSharedFindableOrStaleBlocks) {
  BlockManager blocks(4, true);
  const auto tokens = tokens_of(256, 0);
  BlockTable a;
  blocks.start(a, tokens, 255, "");
  ASSERT_TRUE(blocks.extend(a, 2));
  EXPECT_TRUE(blocks.check_writable(a, 0, 256).ok());
  EXPECT_FALSE(blocks.check_writable(a, 0, 257).ok());
  blocks.commit(a, std::span(tokens).first(128));
  EXPECT_FALSE(blocks.check_writable(a, 0, 256).ok());
  EXPECT_TRUE(blocks.check_writable(a, 128, 256).ok());
  BlockTable stale = a;
  blocks.release(a);
  BlockTable b;
  ASSERT_TRUE(blocks.extend(b, 4));
  const Status status = blocks.check_writable(stale, 128, 256);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("stale"), std::string::npos) << status.to_string();
}

// Random work against plain sets and maps that know nothing of lists, hashes or order.
class Model {
 public:
  Model(std::int64_t blocks, std::uint32_t seed) : manager_(blocks, true), random_(seed) {
    manager_.on_dead([this](std::int32_t block) { content_.erase(block); });
  }

  void run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
      switch (random_() % 5) {
        case 0:
          begin();
          break;
        case 1:
        case 2:
          grow();
          break;
        case 3:
          end();
          break;
        default:
          abandon();
          break;
      }
      check();
    }
    while (!live_.empty()) {
      manager_.release(live_.begin()->second.table);
      live_.erase(live_.begin());
    }
    check();
    ASSERT_EQ(manager_.available(), manager_.total());
    ASSERT_GT(hits_, 0);
  }

 private:
  struct Live {
    std::vector<std::int32_t> tokens;
    std::int64_t computed = 0;
    BlockTable table;
  };

  // Few different beginnings, so that prefixes meet.
  std::vector<std::int32_t> some_tokens() {
    std::vector<std::int32_t> tokens(1 + random_() % 600);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(i / 128 * 1000);
    if (random_() % 2 == 0)
      tokens[random_() % tokens.size()] = static_cast<std::int32_t>(random_() % 3);
    return tokens;
  }

  void begin() {
    Live live;
    live.tokens = some_tokens();
    const auto size = static_cast<std::int64_t>(live.tokens.size());
    const auto probe = manager_.probe(live.tokens, size - 1, "");
    live.computed = manager_.start(live.table, live.tokens, size - 1, "");
    ASSERT_EQ(probe.tokens, live.computed);
    ASSERT_LT(live.computed, size);
    ASSERT_EQ(live.computed % 128, 0);
    for (std::int64_t i = 0; i < live.table.size(); ++i) {
      // What is found holds exactly these tokens after exactly this prefix.
      const std::vector<std::int32_t> prefix(live.tokens.begin(),
                                             live.tokens.begin() + (i + 1) * 128);
      ASSERT_EQ(content_.at(live.table.blocks[static_cast<std::size_t>(i)]), prefix);
    }
    hits_ += live.computed;
    if (!manager_.extend(live.table, (size + 127) / 128)) {
      manager_.release(live.table);
      return;
    }
    live_[next_++] = std::move(live);
  }

  void grow() {
    if (live_.empty()) return;
    Live& live = pick();
    auto target =
        std::min<std::int64_t>(live.computed + 1 + static_cast<std::int64_t>(random_() % 200),
                               static_cast<std::int64_t>(live.tokens.size()) + 1);
    if (target > static_cast<std::int64_t>(live.tokens.size())) {
      if (!manager_.extend(live.table, (target + 127) / 128)) return;
      live.tokens.push_back(static_cast<std::int32_t>(random_() % 2));
    }
    const Status writable = manager_.check_writable(live.table, live.computed, target);
    ASSERT_TRUE(writable.ok()) << writable.to_string();
    for (std::int64_t i = live.computed / 128; i * 128 < target; ++i) {
      const std::int32_t block = live.table.blocks[static_cast<std::size_t>(i)];
      content_[block].assign(live.tokens.begin(),
                             live.tokens.begin() + std::min(target, (i + 1) * 128));
    }
    live.computed = target;
    manager_.commit(live.table,
                    std::span(live.tokens).first(static_cast<std::size_t>(live.computed)));
  }

  void end() {
    if (live_.empty()) return;
    auto at = live_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random_() % live_.size()));
    manager_.release(at->second.table);
    live_.erase(at);
  }

  // A sequence whose prompt was never finished: nothing incomplete may be found afterwards.
  void abandon() {
    if (random_() % 20 == 0) manager_.forget_cached();
    end();
  }

  Live& pick() {
    auto at = live_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random_() % live_.size()));
    return at->second;
  }

  void check() {
    ASSERT_TRUE(manager_.check_books().ok()) << manager_.check_books().to_string();
    std::map<std::int32_t, int> held;
    for (const auto& [id, live] : live_) {
      std::set<std::int32_t> own(live.table.blocks.begin(), live.table.blocks.end());
      ASSERT_EQ(own.size(), live.table.blocks.size());
      for (const std::int32_t block : live.table.blocks) ++held[block];
    }
    std::int64_t free = 0;
    for (std::int32_t block = 0; block < static_cast<std::int32_t>(manager_.total()); ++block) {
      ASSERT_EQ(manager_.references(block), held.count(block) > 0 ? held[block] : 0);
      free += held.count(block) > 0 ? 0 : 1;
    }
    ASSERT_EQ(free, manager_.available());
  }

  BlockManager manager_;
  std::mt19937 random_;
  std::map<int, Live> live_;
  std::map<std::int32_t, std::vector<std::int32_t>> content_;
  std::int64_t hits_ = 0;
  int next_ = 0;
};

TEST(BlockManager, AgreesWithAPlainModelOverRandomWork) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Model model(6 + seed, seed);
    model.run(1500);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace monolayer::engine

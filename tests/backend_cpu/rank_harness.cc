#include "backend_cpu/rank_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

namespace monolayer::test {
namespace {

template <typename K, typename V>
void keep(std::map<K, V>& all, const K& key, V value, const char* what) {
  const auto [it, added] = all.emplace(key, value);
  if (added) return;
  EXPECT_EQ(0, std::memcmp(it->second.data(), value.data(),
                           value.size() * sizeof(typename V::value_type)))
      << what << " differs between ranks: layer " << std::get<0>(key) << ", row "
      << std::get<1>(key);
}

}  // namespace

void on_ranks(int size, const std::function<void(int, tp::Group&)>& body) {
  auto groups = tp::make_thread_group(size);
  ASSERT_TRUE(groups.ok()) << groups.status().to_string();
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      tp::Group& group = *groups.value()[static_cast<std::size_t>(rank)];
      body(rank, group);
      const Status closed = group.close();
      EXPECT_TRUE(closed.ok()) << closed.to_string();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void collect(const m3::ModelConfig& config, const m3::RankShape& shape, const Recorder& trace,
             const cpu::CachePool& pool, const std::vector<std::int32_t>& pages,
             std::int64_t tokens, RankOutput& out) {
  for (const auto& [key, values] : trace.hidden_rows) keep(out.hidden, key, values, "hidden");
  for (const auto& [key, ids] : trace.selections) {
    const auto [layer, row, head] = key;
    keep(out.selections, std::tuple{layer, row, head + shape.first_kv_head}, ids, "selection");
  }
  const auto entry = [](const cpu::Matrix& page, std::int64_t slot) {
    const auto* at = static_cast<const std::byte*>(page.data) + slot * page.row_bytes;
    return std::vector<std::byte>(at, at + page.row_bytes);
  };
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (std::int64_t p = 0; p < tokens; ++p) {
      const std::int32_t page = pages[static_cast<std::size_t>(p / m3::kPageTokens)];
      const std::int64_t slot = p % m3::kPageTokens;
      for (std::int64_t g = 0; g < shape.kv_heads; ++g) {
        const std::int64_t head = 3 * (shape.first_kv_head + g);
        keep(out.entries, std::tuple{layer, p, head}, entry(pool.k_page(layer, page, g), slot),
             "key");
        keep(out.entries, std::tuple{layer, p, head + 1}, entry(pool.v_page(layer, page, g), slot),
             "value");
      }
      if (pool.layer(layer).index == nullptr) continue;
      keep(out.entries, std::tuple{layer, p, std::int64_t{2}},
           entry(pool.index_page(layer, page), slot), "index key");
    }
  }
}

RankOutput run_native_ranks(const m3::ModelConfig& config, const m3::ModelWeights& weights,
                            int size, const EngineOptions& options,
                            const std::vector<std::int32_t>& tokens,
                            const std::vector<std::int64_t>& chunks) {
  RankOutput out;
  out.logits.resize(static_cast<std::size_t>(size));
  std::mutex mutex;
  const auto n = static_cast<std::int64_t>(tokens.size());
  const std::vector<std::int32_t> pages = page_table(n);
  on_ranks(size, [&](int rank, tp::Group& group) {
    auto shape = m3::rank_shape(config, rank, size);
    ASSERT_TRUE(shape.ok()) << shape.status().to_string();
    const m3::ModelConfig local = m3::rank_config(config, *shape);
    auto team = cpu::ThreadTeam::create({.threads = options.threads, .pin = false});
    auto pool = cpu::CachePool::create(local, options.cache, options.pool_pages);
    ASSERT_TRUE(team.ok() && pool.ok());
    std::memset((*pool)->memory(), 0xff, (*pool)->bytes());
    auto native = cpu::Native::create(
        config, weights, **team,
        {.tiles = options.tiles, .prefill_tile = options.row_tile, .group = &group});
    ASSERT_TRUE(native.ok()) << native.status().to_string();
    Recorder trace;
    std::int64_t at = 0;
    for (std::size_t i = 0; at < n; ++i) {
      const std::int64_t chunk = std::min(n - at, chunks[std::min(i, chunks.size() - 1)]);
      cpu::StepSequence sequence;
      sequence.tokens =
          std::span(tokens).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(chunk));
      sequence.start = at;
      sequence.pages = pages;
      sequence.logit_rows = chunk;
      std::vector<float> logits;
      const Status status = (*native)->step({&sequence, 1}, **pool, logits, &trace);
      ASSERT_TRUE(status.ok()) << status.to_string();
      auto& all = out.logits[static_cast<std::size_t>(rank)];
      all.insert(all.end(), logits.begin(), logits.end());
      at += chunk;
    }
    const std::lock_guard lock(mutex);
    collect(config, *shape, trace, **pool, pages, n, out);
  });
  return out;
}

void expect_same_ranks(const RankOutput& a, const RankOutput& b, const char* what) {
  ASSERT_EQ(a.selections, b.selections) << what << ": selections";
  ASSERT_EQ(a.hidden.size(), b.hidden.size()) << what;
  for (const auto& [key, values] : a.hidden) {
    const auto other = b.hidden.find(key);
    ASSERT_NE(other, b.hidden.end()) << what;
    ASSERT_EQ(0, std::memcmp(values.data(), other->second.data(), values.size() * 4))
        << what << ": hidden of layer " << std::get<0>(key) << ", row " << std::get<1>(key);
  }
  ASSERT_EQ(a.entries.size(), b.entries.size()) << what;
  ASSERT_TRUE(a.entries == b.entries) << what << ": caches";
  for (const auto& mine : a.logits) {
    for (const auto& theirs : b.logits) {
      ASSERT_EQ(mine.size(), theirs.size()) << what;
      ASSERT_EQ(0, std::memcmp(mine.data(), theirs.data(), mine.size() * 4)) << what << ": logits";
    }
  }
}

}  // namespace monolayer::test

#include "backend_cpu/native_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

namespace monolayer::test {
namespace {

using EntryVisitor = std::function<void(std::byte*, std::int64_t bytes, DType)>;

// Every cache entry of positions [begin, end) of a table, layer by layer.
void each_entry(const m3::ModelConfig& config, const cpu::CachePool& pool,
                const std::vector<std::int32_t>& pages, std::int64_t begin, std::int64_t end,
                const EntryVisitor& visit) {
  const auto row = [](const cpu::Matrix& page, std::int64_t slot) {
    return static_cast<std::byte*>(const_cast<void*>(page.data)) + slot * page.row_bytes;
  };
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int32_t page = pages[static_cast<std::size_t>(p / m3::kPageTokens)];
      const std::int64_t slot = p % m3::kPageTokens;
      for (std::int64_t g = 0; g < config.num_kv_heads; ++g) {
        const cpu::Matrix k = pool.k_page(layer, page, g);
        const cpu::Matrix v = pool.v_page(layer, page, g);
        visit(row(k, slot), k.row_bytes, pool.options().kv);
        visit(row(v, slot), v.row_bytes, pool.options().kv);
      }
      if (pool.layer(layer).index == nullptr) continue;
      const cpu::Matrix index = pool.index_page(layer, page);
      visit(row(index, slot), index.row_bytes, pool.options().index);
    }
  }
}

void fill(std::byte* at, std::int64_t bytes, DType dtype, float value) {
  if (dtype == DType::kE4M3) {
    std::fill_n(at, bytes, static_cast<std::byte>(f32_to_e4m3(value)));
    return;
  }
  const bf16_t bits = f32_to_bf16(value);
  for (std::int64_t i = 0; i < bytes; i += 2) std::memcpy(at + i, &bits, 2);
}

}  // namespace

Engine::Engine(const m3::ModelConfig& model_config, const m3::ModelWeights& weights,
               const EngineOptions& options)
    : config(model_config) {
  auto made_team = cpu::ThreadTeam::create({.threads = options.threads, .pin = false});
  EXPECT_TRUE(made_team.ok()) << made_team.status().to_string();
  team = std::move(made_team).value();
  auto made_pool = cpu::CachePool::create(config, options.cache, options.pool_pages);
  EXPECT_TRUE(made_pool.ok()) << made_pool.status().to_string();
  pool = std::move(made_pool).value();
  std::memset(pool->memory(), 0xff, pool->bytes());  // NaN in BF16 and in E4M3
  auto made_native = cpu::Native::create(config, weights, *team,
                                         {.tiles = options.tiles,
                                          .prefill_tile = options.row_tile,
                                          .choices = options.choices,
                                          .rotary = options.rotary});
  EXPECT_TRUE(made_native.ok()) << made_native.status().to_string();
  native = std::move(made_native).value();
}

std::vector<std::int32_t> page_table(std::int64_t tokens, std::int32_t first, std::int32_t step) {
  std::vector<std::int32_t> pages;
  for (std::int64_t p = 0; p * m3::kPageTokens < tokens; ++p) {
    pages.push_back(first + static_cast<std::int32_t>(p) * step);
  }
  return pages;
}

std::vector<std::byte> cache_bytes(const m3::ModelConfig& config, const cpu::CachePool& pool,
                                   const std::vector<std::int32_t>& pages, std::int64_t tokens) {
  std::vector<std::byte> out;
  each_entry(config, pool, pages, 0, tokens, [&](const std::byte* at, std::int64_t bytes, DType) {
    out.insert(out.end(), at, at + bytes);
  });
  return out;
}

void poison_tail(const m3::ModelConfig& config, cpu::CachePool& pool,
                 const std::vector<std::int32_t>& pages, std::int64_t tokens, float value) {
  each_entry(
      config, pool, pages, tokens, static_cast<std::int64_t>(pages.size()) * m3::kPageTokens,
      [&](std::byte* at, std::int64_t bytes, DType dtype) { fill(at, bytes, dtype, value); });
}

void poison_pool(cpu::CachePool& pool, float value) {
  // K and V precede the index keys of a layer; with one type for both, one fill is right.
  fill(pool.memory(), static_cast<std::int64_t>(pool.bytes()), pool.options().kv, value);
}

Output run(Engine& engine, const std::vector<std::int32_t>& tokens,
           const std::vector<std::int32_t>& pages, const std::vector<std::int64_t>& chunks) {
  Output out;
  std::int64_t at = 0;
  const auto n = static_cast<std::int64_t>(tokens.size());
  for (std::size_t i = 0; at < n; ++i) {
    const std::int64_t chunk = std::min(n - at, chunks[std::min(i, chunks.size() - 1)]);
    cpu::StepSequence sequence;
    sequence.tokens =
        std::span(tokens).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(chunk));
    sequence.start = at;
    sequence.pages = pages;
    sequence.logit_rows = chunk;
    std::vector<float> logits;
    const Status status = engine.native->step({&sequence, 1}, *engine.pool, logits, &out.trace);
    EXPECT_TRUE(status.ok()) << status.to_string();
    if (!status.ok()) break;
    out.logits.insert(out.logits.end(), logits.begin(), logits.end());
    at += chunk;
  }
  out.cache = cache_bytes(engine.config, *engine.pool, pages, n);
  return out;
}

void expect_same_bits(const Output& a, const Output& b, const char* what) {
  ASSERT_EQ(a.trace.selections, b.trace.selections) << what << ": selections";
  for (const auto& [key, values] : a.trace.hidden_rows) {
    const auto other = b.trace.hidden_rows.find(key);
    ASSERT_NE(other, b.trace.hidden_rows.end()) << what;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]),
                std::bit_cast<std::uint32_t>(other->second[i]))
          << what << ": hidden of layer " << std::get<0>(key) << ", row " << std::get<1>(key)
          << ", column " << i;
    }
  }
  ASSERT_EQ(a.cache.size(), b.cache.size()) << what;
  ASSERT_EQ(0, std::memcmp(a.cache.data(), b.cache.data(), a.cache.size())) << what << ": cache";
  ASSERT_EQ(a.logits.size(), b.logits.size()) << what;
  ASSERT_EQ(0, std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * 4))
      << what << ": logits";
}

}  // namespace monolayer::test

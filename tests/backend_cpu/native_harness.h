// Runs sequences through the native chain and collects what can be compared bit for bit.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cpu/native.h"
#include "backend/cpu/thread_team.h"
#include "m3/config.h"
#include "m3/trace.h"
#include "m3/weights.h"

namespace monolayer::test {

// Everything a step shows: hidden values and selections by (layer, position[, head]).
class Recorder : public m3::TraceSink {
 public:
  void hidden(std::int64_t layer, std::int64_t row, std::span<const float> values) override {
    hidden_rows[{layer, row}].assign(values.begin(), values.end());
  }
  void blocks(std::int64_t layer, std::int64_t row, std::int64_t head,
              std::span<const std::int32_t> ids, std::span<const float> scores) override {
    selections[{layer, row, head}].assign(ids.begin(), ids.end());
    block_scores[{layer, row, head}].assign(scores.begin(), scores.end());
  }
  void experts(std::int64_t layer, std::int64_t row, std::span<const std::int32_t> ids,
               std::span<const float> scores) override {
    chosen_experts[{layer, row}].assign(ids.begin(), ids.end());
    expert_scores[{layer, row}].assign(scores.begin(), scores.end());
  }
  std::map<std::tuple<std::int64_t, std::int64_t>, std::vector<std::int32_t>> chosen_experts;
  std::map<std::tuple<std::int64_t, std::int64_t>, std::vector<float>> expert_scores;
  std::map<std::tuple<std::int64_t, std::int64_t>, std::vector<float>> hidden_rows;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<std::int32_t>>
      selections;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<float>> block_scores;
};

struct EngineOptions {
  int threads = 1;
  cpu::CacheOptions cache;
  const cpu::Tiles* tiles = nullptr;
  std::int64_t row_tile = 64;
  std::int64_t pool_pages = 64;
  m3::ChoiceSource* choices = nullptr;
  m3::RotaryTable rotary{};
};

// A model with a team, a pool and a chain. The pool starts out full of NaN patterns.
class Engine {
 public:
  Engine(const m3::ModelConfig& config, const m3::ModelWeights& weights,
         const EngineOptions& options);

  const m3::ModelConfig& config;
  std::unique_ptr<cpu::ThreadTeam> team;
  std::unique_ptr<cpu::CachePool> pool;
  std::unique_ptr<cpu::Native> native;
};

inline cpu::CacheOptions fp8_cache() {
  return {.kv = DType::kE4M3,
          .index = DType::kE4M3,
          .k_scale = 0.03F,
          .v_scale = 0.02F,
          .index_scale = 0.05F};
}

// Pages `first`, `first` + `step`, ...: enough for `tokens`.
std::vector<std::int32_t> page_table(std::int64_t tokens, std::int32_t first = 0,
                                     std::int32_t step = 1);

struct Output {
  std::vector<float> logits;     // of every row
  std::vector<std::byte> cache;  // written entries of every layer, in the order of positions
  Recorder trace;
};

// Runs `tokens` in chunks of the given lengths (the last one repeats), with logits of every row.
Output run(Engine& engine, const std::vector<std::int32_t>& tokens,
           const std::vector<std::int32_t>& pages, const std::vector<std::int64_t>& chunks);

// The cache bytes of positions [0, tokens) behind a block table.
std::vector<std::byte> cache_bytes(const m3::ModelConfig& config, const cpu::CachePool& pool,
                                   const std::vector<std::int32_t>& pages, std::int64_t tokens);

// Overwrites every entry of the table's pages at positions >= tokens.
void poison_tail(const m3::ModelConfig& config, cpu::CachePool& pool,
                 const std::vector<std::int32_t>& pages, std::int64_t tokens, float value);
// Overwrites the whole pool: a float's BF16 or E4M3 code everywhere.
void poison_pool(cpu::CachePool& pool, float value);

// Fails the test naming the first difference.
void expect_same_bits(const Output& a, const Output& b, const char* what);

}  // namespace monolayer::test

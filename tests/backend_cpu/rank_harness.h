// Runs one token sequence on the ranks of a thread group and collects, per global head, what must
// not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "backend_cpu/native_harness.h"
#include "m3/config.h"
#include "tp/group.h"

namespace monolayer::test {

// Calls body(rank, group) on a thread per rank and closes the groups.
void on_ranks(int size, const std::function<void(int, tp::Group&)>& body);

// Of one run over all ranks; everything under global names.
struct RankOutput {
  std::vector<std::vector<float>> logits;  // [rank]: of every row
  std::map<std::tuple<std::int64_t, std::int64_t>, std::vector<float>> hidden;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<std::int32_t>>
      selections;
  // (layer, position, 3 * head + {0: K, 1: V}, or 2 for the index key): the entry's bytes.
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<std::byte>> entries;
};

// Adds one rank's trace and caches; fails the test where two ranks hold a value and differ.
void collect(const m3::ModelConfig& config, const m3::RankShape& shape, const Recorder& trace,
             const cpu::CachePool& pool, const std::vector<std::int32_t>& pages,
             std::int64_t tokens, RankOutput& out);

// The sequence in chunks on `size` ranks through the native chain.
RankOutput run_native_ranks(const m3::ModelConfig& config, const m3::ModelWeights& weights,
                            int size, const EngineOptions& options,
                            const std::vector<std::int32_t>& tokens,
                            const std::vector<std::int64_t>& chunks);

void expect_same_ranks(const RankOutput& a, const RankOutput& b, const char* what);

}  // namespace monolayer::test

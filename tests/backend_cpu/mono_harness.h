// One step on the native chain and on mono executors over equal caches, on any number of ranks,
// compared bit for bit: stream after every layer, selections, new cache entries.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "backend/cpu/mono_executor.h"
#include "backend_cpu/native_harness.h"
#include "backend_cpu/random_model.h"
#include "tp/group.h"

namespace monolayer::test {

// The new rows of one request: positions start .. start + rows - 1. Requests of one step have
// disjoint positions, so that what a trace reports under a position is theirs alone.
struct Request {
  std::int64_t start = 0, rows = 1;
};

struct MonoCase {
  cpu::CacheOptions cache;
  std::vector<Request> requests;
  int ranks = 1;
  int threads = 1;
  std::vector<std::int64_t> padding;  // indices, in the caller's rows, of rows that are not live
  std::uint64_t seed = 1;
  int junk = 0xff;      // every byte of the pool that holds no entry
  bool serial = false;  // compare the serial interpreter too
  int serial_workers = 3;
  cpu::MonoOptions options;  // of the team's executor
  m3::RotaryTable rotary{};  // of every path
};

// Splits heads eight ways at a size where a layer takes a fraction of a millisecond: one dense and
// two sparse layers with experts, blocks of 16 keys of which 4 are taken.
m3::ModelConfig eight_way_config();

// A pool behind two block tables, main and index, of its own.
struct Pool {
  std::unique_ptr<cpu::CachePool> pool;
  std::vector<std::vector<std::int32_t>> main, index;  // [request]
};

// Fills a pool: entries before each request's start are drawn from (layer, global head, start,
// position), everything else is junk. `shuffle` decides the tables, which end with entries that
// must not be used; with `split` index tables differ from main ones.
Pool make_pool(const m3::ModelConfig& local, std::int64_t first_kv_head,
               const cpu::CacheOptions& options, const std::vector<Request>& requests,
               std::uint64_t seed, std::uint64_t shuffle, bool split, int junk = 0xff);

// Bytes of the entries of the requests' new rows, layer by layer.
std::vector<std::byte> new_entries(const m3::ModelConfig& local, const Pool& pool,
                                   const std::vector<Request>& requests);

// Rows of a step over a pool; `padding` rows hold garbage that must not be used.
std::vector<mono::StepRow> step_rows(const Pool& pool, const std::vector<Request>& requests,
                                     const std::vector<std::int64_t>& padding);

// Hidden inputs of the rows, a function of their positions; NaN on rows that are not live.
std::vector<bf16_t> step_inputs(const m3::ModelConfig& config,
                                const std::vector<mono::StepRow>& rows, std::uint64_t seed);

// Fails the test naming the first difference.
void compare_paths(const RandomModel& model, const MonoCase& c);

}  // namespace monolayer::test

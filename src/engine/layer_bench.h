// All layers of a decode step, op by op and fused, taken in turns on the same weights, caches and
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"

namespace monolayer::engine {

struct LayerBenchOptions {
  std::vector<std::int64_t> contexts{128};
  std::vector<std::int64_t> rows{1, 2, 4, 8, 16};  // sequences of one row each
  std::vector<std::int64_t> threads{0};
  std::int64_t repeats = 9;  // timed pairs of steps; medians are reported
  CacheTypes cache_types;
  std::string tiles;
  std::string timeline;  // SVG file of one fused step, of the last combination; empty: none
};

struct LayerResult {
  std::int64_t context = 0, rows = 0;
  int threads = 0;
  std::int64_t bytes = 0;  // moved by a step's layers
  double native_seconds = 0, mono_seconds = 0;
  double stream_bytes_per_second = 0;
  double wait_seconds = 0;     // of a fused step, per thread
  double prepare_seconds = 0;  // of the host, before a fused step whose plans stay
  double native_rate() const { return static_cast<double>(bytes) / native_seconds; }
  double mono_rate() const { return static_cast<double>(bytes) / mono_seconds; }
};

using LayerResultCallback = std::function<void(const LayerResult&)>;

// Errors as NativeRun::load(); kUnsupported for more than 16 rows.
Status bench_layers(const OpenModel& model, const LayerBenchOptions& options,
                    const LayerResultCallback& on_result);

}  // namespace monolayer::engine

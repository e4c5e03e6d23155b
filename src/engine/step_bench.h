// Decode and prefill steps of a checkpoint, timed next to the machine's read stream.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"

namespace monolayer::engine {

struct StepBenchOptions {
  std::vector<std::int64_t> contexts{512};  // tokens already cached, per row
  std::vector<std::int64_t> rows{1};        // sequences decoded together
  std::vector<std::int64_t> threads{0};     // 0: one per physical core
  std::vector<std::int64_t> prefills{512};  // prompt lengths, each one step from position 0
  std::int64_t repeats = 9;                 // timed steps of each kind; medians are reported
  CacheTypes cache_types;
  std::string tiles;  // kernel variant; empty: the best
  std::string path = "auto";
  int ranks = 1;
};

struct StepResult {
  std::string kind;  // "decode" or "prefill"
  std::int64_t context = 0, rows = 0;
  int threads = 0;
  std::string kernel;
  double seconds = 0;  // median
  double tokens_per_second = 0;
  std::int64_t bytes = 0;  // moved by the median step
  double bytes_per_second = 0;
  double stream_bytes_per_second = 0;  // median of passes taken between the steps
  double share() const { return bytes_per_second / stream_bytes_per_second; }
};

using StepResultCallback = std::function<void(const StepResult&)>;

// Runs every combination and reports each as it is done. Cached entries are made up (their values
// change no timing); tokens differ from step to step, so that experts do. Errors as
// NativeRun::load().
Status bench_steps(const OpenModel& model, const StepBenchOptions& options,
                   const StepResultCallback& on_result);

}  // namespace monolayer::engine

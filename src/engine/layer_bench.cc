#include "engine/layer_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>

#include "backend/cpu/mono_chain.h"
#include "backend/cpu/stream.h"
#include "engine/bench_batch.h"
#include "engine/native_run.h"
#include "engine/timeline.h"

namespace monolayer::engine {
namespace {

using Clock = std::chrono::steady_clock;

class Pair {
 public:
  Pair(const OpenModel& model, NativeRun& run, cpu::Native& native, cpu::MonoChain& mono,
       cpu::ReadStream& stream)
      : model_(model), run_(run), native_(native), mono_(mono), stream_(stream) {}

  Result<LayerResult> time(std::int64_t rows, std::int64_t context, std::int64_t repeats) {
    BenchBatch batch(rows, context, 1, 0);
    std::vector<double> native, mono, rates, bytes, waits, prepares;
    for (std::int64_t i = -1; i < repeats; ++i) {  // the first pair warms up
      batch.draw_tokens(model_.config.vocab_size, state_);
      // Each goes first half of the time.
      double native_seconds = 0, mono_seconds = 0;
      for (const bool fused : {i % 2 == 0, i % 2 != 0}) {
        if (fused) {
          ML_ASSIGN_OR_RETURN(mono_seconds, step(mono_, batch));
          continue;
        }
        ML_ASSIGN_OR_RETURN(native_seconds, step(native_, batch));
      }
      const double rate = stream_.pass();
      if (i < 0) continue;
      native.push_back(native_seconds);
      mono.push_back(mono_seconds);
      rates.push_back(rate);
      bytes.push_back(static_cast<double>(mono_.last_traffic().total()));
      waits.push_back(mono_.executor()->statistics().wait_seconds / run_.team().size());
      prepares.push_back(mono_.prepare_seconds());
    }
    LayerResult result;
    result.context = context;
    result.rows = rows;
    result.threads = run_.team().size();
    result.bytes = static_cast<std::int64_t>(bench_median(bytes));
    result.native_seconds = bench_median(native);
    result.mono_seconds = bench_median(mono);
    result.stream_bytes_per_second = bench_median(rates);
    result.wait_seconds = bench_median(waits);
    result.prepare_seconds = bench_median(prepares);
    return result;
  }

 private:
  Result<double> step(cpu::Native& chain, const BenchBatch& batch) {
    const auto start = Clock::now();
    ML_RETURN_IF_ERROR(chain.step(batch.sequences, run_.pool(), logits_, nullptr));
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  const OpenModel& model_;
  NativeRun& run_;
  cpu::Native& native_;
  cpu::MonoChain& mono_;
  cpu::ReadStream& stream_;
  std::vector<float> logits_;
  std::uint64_t state_ = 1;
};

std::int64_t largest(const std::vector<std::int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// A second fused chain that records, so that the timed one does not.
Status draw(const OpenModel& model, NativeRun& run, const LayerBenchOptions& options,
            const std::string& path) {
  ML_ASSIGN_OR_RETURN(auto chain, cpu::Native::create(model.config, run.weights(), run.team(),
                                                      {.tiles = &run.tiles(), .fused = true}));
  auto& mono = dynamic_cast<cpu::MonoChain&>(*chain);
  mono.set_mono_options({.record = true});
  BenchBatch batch(options.rows.back(), options.contexts.back(), 1, 0);
  std::vector<float> logits;
  for (int i = 0; i < 2; ++i) {
    ML_RETURN_IF_ERROR(mono.step(batch.sequences, run.pool(), logits, nullptr));
  }
  std::ofstream file(path, std::ios::binary);
  file << timeline_svg(mono.executor()->times(), run.team().size(), 4);
  file.close();
  if (!file) return {Code::kIoError, path, "cannot be written"};
  return {};
}

}  // namespace

Status bench_layers(const OpenModel& model, const LayerBenchOptions& options,
                    const LayerResultCallback& on_result) {
  if (largest(options.rows) > mono::kMaxRows) {
    return {Code::kUnsupported, "--rows",
            std::to_string(largest(options.rows)) + " rows, the fused path takes " +
                std::to_string(mono::kMaxRows)};
  }
  const std::int64_t page = m3::kPageTokens;
  for (const std::int64_t threads : options.threads) {
    NativeRunOptions run_options;
    run_options.threads = static_cast<int>(threads);
    run_options.cache_types = options.cache_types;
    run_options.context_tokens =
        (largest(options.contexts) + page) / page * largest(options.rows) * page;
    run_options.context_flag = "contexts times rows";
    run_options.tiles = options.tiles;
    run_options.path = "mono";
    ML_ASSIGN_OR_RETURN(const auto run, NativeRun::load(model, run_options));
    std::memset(run->pool().memory(), 0x3c, run->pool().bytes());
    ML_ASSIGN_OR_RETURN(
        const auto native,
        cpu::Native::create(model.config, run->weights(), run->team(), {.tiles = &run->tiles()}));
    ML_ASSIGN_OR_RETURN(const auto stream,
                        cpu::ReadStream::create(run->team(), cpu::StreamEffort::kThorough));
    Pair pair(model, *run, *native, dynamic_cast<cpu::MonoChain&>(run->native()), *stream);
    for (const std::int64_t rows : options.rows) {
      for (const std::int64_t context : options.contexts) {
        ML_ASSIGN_OR_RETURN(const LayerResult result, pair.time(rows, context, options.repeats));
        on_result(result);
      }
    }
    if (!options.timeline.empty() && threads == options.threads.back()) {
      ML_RETURN_IF_ERROR(draw(model, *run, options, options.timeline));
    }
  }
  return ok_status();
}

}  // namespace monolayer::engine

// `monolayer bench step` and `bench layer`.
#include <cstdio>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/bench_flags.h"
#include "engine/layer_bench.h"
#include "engine/memory_check.h"

namespace monolayer::cli {
namespace {

nlohmann::json to_json(const engine::StepResult& r) {
  return {{"kind", r.kind},
          {"context", r.context},
          {"rows", r.rows},
          {"threads", r.threads},
          {"kernel", r.kernel},
          {"median_seconds", r.seconds},
          {"tokens_per_second", r.tokens_per_second},
          {"bytes", r.bytes},
          {"bytes_per_second", r.bytes_per_second},
          {"read_stream_bytes_per_second", r.stream_bytes_per_second},
          {"share_of_read_stream", r.share()}};
}

void print_head() {
  std::printf("%-8s %9s %5s %8s  %10s %11s %10s %9s %9s %8s\n", "kind", "context", "rows",
              "threads", "median ms", "tokens/s", "bytes", "GB/s", "stream", "share %");
}

void print_row(const engine::StepResult& r) {
  std::printf("%-8s %9lld %5lld %8d  %10.3f %11.1f %10s %9.2f %9.2f %8.1f\n", r.kind.c_str(),
              static_cast<long long>(r.context), static_cast<long long>(r.rows), r.threads,
              r.seconds * 1e3, r.tokens_per_second, engine::format_bytes(r.bytes).c_str(),
              r.bytes_per_second / 1e9, r.stream_bytes_per_second / 1e9, 100 * r.share());
  std::fflush(stdout);
}

nlohmann::json to_json(const engine::LayerResult& r) {
  return {{"context", r.context},
          {"rows", r.rows},
          {"threads", r.threads},
          {"bytes", r.bytes},
          {"native_seconds", r.native_seconds},
          {"mono_seconds", r.mono_seconds},
          {"native_bytes_per_second", r.native_rate()},
          {"mono_bytes_per_second", r.mono_rate()},
          {"read_stream_bytes_per_second", r.stream_bytes_per_second},
          {"wait_seconds_per_thread", r.wait_seconds},
          {"prepare_seconds", r.prepare_seconds}};
}

void print_layer_head() {
  std::printf("%9s %5s %8s %10s %10s %8s %9s %9s %9s %8s %9s %11s\n", "context", "rows", "threads",
              "native ms", "mono ms", "ratio", "native", "mono", "stream", "share %", "waits %",
              "prepare us");
}

}  // namespace

Status bench_step(const BenchFlags& flags, const engine::StepBenchOptions& options,
                  const engine::OpenModel& model) {
  nlohmann::json results = nlohmann::json::array();
  bool headed = false;
  ML_RETURN_IF_ERROR(engine::bench_steps(model, options, [&](const engine::StepResult& result) {
    if (flags.json) {
      results.push_back(to_json(result));
      return;
    }
    if (!std::exchange(headed, true)) print_head();
    print_row(result);
  }));
  if (flags.json) {
    ML_ASSIGN_OR_RETURN(const cpu::CacheOptions caches,
                        engine::cache_options(options.cache_types, "cpu"));
    const nlohmann::json report = {{"model", model.folder},
                                   {"file_bytes", model.checkpoint.file_bytes()},
                                   {"path", flags.run.path},
                                   {"tensor_parallel_size", flags.run.tensor_parallel_size},
                                   {"backend", "cpu"},
                                   {"kv_cache_dtype", engine::cache_type_name(caches.kv)},
                                   {"index_cache_dtype", engine::cache_type_name(caches.index)},
                                   {"repeats", flags.repeats},
                                   {"results", results}};
    std::printf("%s\n", report.dump(2).c_str());
  }
  return ok_status();
}

// All layers of a step, native and fused in turns.
Status bench_layer(const BenchFlags& flags, const engine::StepBenchOptions& step,
                   const engine::OpenModel& model) {
  engine::LayerBenchOptions options;
  options.contexts = step.contexts;
  options.rows = step.rows;
  options.threads = step.threads;
  options.repeats = step.repeats;
  options.cache_types = step.cache_types;
  options.timeline = flags.timeline;
  nlohmann::json results = nlohmann::json::array();
  bool headed = false;
  ML_RETURN_IF_ERROR(engine::bench_layers(model, options, [&](const engine::LayerResult& r) {
    if (flags.json) {
      results.push_back(to_json(r));
      return;
    }
    if (!std::exchange(headed, true)) print_layer_head();
    std::printf("%9lld %5lld %8d %10.3f %10.3f %8.3f %9.2f %9.2f %9.2f %8.1f %9.1f %11.2f\n",
                static_cast<long long>(r.context), static_cast<long long>(r.rows), r.threads,
                r.native_seconds * 1e3, r.mono_seconds * 1e3, r.mono_seconds / r.native_seconds,
                r.native_rate() / 1e9, r.mono_rate() / 1e9, r.stream_bytes_per_second / 1e9,
                100 * r.mono_rate() / r.stream_bytes_per_second,
                100 * r.wait_seconds / r.mono_seconds, r.prepare_seconds * 1e6);
    std::fflush(stdout);
  }));
  if (flags.json) {
    const nlohmann::json report = {{"model", model.folder},
                                   {"file_bytes", model.checkpoint.file_bytes()},
                                   {"backend", "cpu"},
                                   {"repeats", flags.repeats},
                                   {"results", results}};
    std::printf("%s\n", report.dump(2).c_str());
  }
  return ok_status();
}

}  // namespace monolayer::cli

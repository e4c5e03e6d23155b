#include "cli/bench_device.h"

#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/native_run.h"

namespace monolayer::cli {
namespace {

nlohmann::json to_json(const cuda::BenchResult& r) {
  nlohmann::json json = {{"context", r.context}, {"rows", r.rows}, {"layers", r.layers}};
  if (!r.skipped.empty()) {
    json["skipped"] = r.skipped;
    return json;
  }
  const auto path = [&](double seconds, double best, double wall, double logits) {
    nlohmann::json p = {{"us", seconds * 1e6},
                        {"us_a_layer", seconds * 1e6 / static_cast<double>(r.layers)},
                        {"best_us", best * 1e6},
                        {"gb_s", r.rate(seconds) / 1e9},
                        {"share_of_stream", r.rate(seconds) / r.stream_bytes_per_second}};
    if (wall > 0) p["host_us"] = wall * 1e6;
    if (logits > 0) p["host_logits_us"] = logits * 1e6;
    return p;
  };
  json.update({{"experts_a_layer", r.experts},
               {"bytes", r.bytes},
               {"stream_gb_s", r.stream_bytes_per_second / 1e9},
               {"same_bits", r.same_bits}});
  if (r.native_seconds > 0)
    json["native"] =
        path(r.native_seconds, r.native_best, r.native_wall_seconds, r.native_logits_seconds);
  if (r.mono_seconds > 0)
    json["mono"] = path(r.mono_seconds, r.mono_best, r.mono_wall_seconds, r.mono_logits_seconds);
  if (r.native_seconds > 0 && r.mono_seconds > 0)
    json["native_over_mono"] = r.native_seconds / r.mono_seconds;
  return json;
}

void print(const cuda::BenchResult& r, bool whole_step) {
  std::printf("%9lld %5lld ", static_cast<long long>(r.context), static_cast<long long>(r.rows));
  if (!r.skipped.empty()) {
    std::printf("not timed: %s\n", r.skipped.c_str());
    return;
  }
  const double layers = whole_step ? 1 : static_cast<double>(r.layers);
  const auto path = [&](double seconds) {
    if (seconds <= 0) {
      std::printf("%10s %6s %6s ", "-", "-", "-");
      return;
    }
    std::printf("%10.1f %6.0f %6.1f ", seconds * 1e6 / layers, r.rate(seconds) / 1e9,
                100 * r.rate(seconds) / r.stream_bytes_per_second);
  };
  std::printf("%8.2f %9.1f ", r.experts, static_cast<double>(r.bytes) / layers / 1e6);
  path(r.native_seconds);
  path(r.mono_seconds);
  if (r.native_seconds > 0 && r.mono_seconds > 0) {
    std::printf("%6.2f ", r.native_seconds / r.mono_seconds);
  } else {
    std::printf("%6s ", "-");
  }
  std::printf("%6.0f %s\n", r.stream_bytes_per_second / 1e9, r.same_bits ? "yes" : "NO");
  std::fflush(stdout);
}

}  // namespace

Status run_device_bench(const cuda::BenchOptions& options, bool json) {
  nlohmann::json report = {{"backend", "cuda"},
                           {"what", options.whole_step ? "step" : "layer"},
                           {"rank_of", options.ranks},
                           {"every_rank", options.every_rank},
                           {"query", options.query},
                           {"router_dtype", options.f32_router ? "f32" : "bf16"},
                           {"kv_cache_dtype", engine::cache_type_name(options.kv)},
                           {"index_cache_dtype", engine::cache_type_name(options.index)},
                           {"dense_layers", options.dense_layers},
                           {"sparse_layers", options.sparse_layers},
                           {"repeats", options.repeats},
                           {"results", nlohmann::json::array()}};
  const auto on_setup = [&](const cuda::BenchSetup& setup) {
    report["device"] = setup.device;
    report["weight_bytes"] = setup.weight_bytes;
    report["m3_kernels"] = setup.m3_kernels;
    report["kernel_family"] = setup.kernel_family;
    if (json) return;
    std::printf(
        "%s, %.1f GB of random weights, %s, %s\n", setup.device.c_str(),
        static_cast<double>(setup.weight_bytes) / 1e9,
        options.every_rank
            ? ("each of " + std::to_string(options.ranks) + " ranks on its own").c_str()
            : ("rank 0 of " + std::to_string(options.ranks) + " standing in for all").c_str(),
        setup.kernel_family.c_str());
    std::printf("%9s %5s %8s %9s %10s %6s %6s %10s %6s %6s %6s %6s %s\n", "context", "rows",
                "experts", "MB", "native us", "GB/s", "%", "mono us", "GB/s", "%", "ratio",
                "stream", "same bits");
  };
  bool same = true;
  ML_RETURN_IF_ERROR(engine::bench_device(options, on_setup, [&](const cuda::BenchResult& result) {
    same = same && result.same_bits;
    if (json) {
      report["results"].push_back(to_json(result));
    } else {
      print(result, options.whole_step);
    }
  }));
  if (json) std::printf("%s\n", report.dump(2).c_str());
  if (same) return ok_status();
  return {Code::kInternal, "bench", "native and fused gave different bits"};
}

}  // namespace monolayer::cli

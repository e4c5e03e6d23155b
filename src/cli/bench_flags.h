// `monolayer bench` in its kinds: what each takes and does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command.h"
#include "engine/model_loader.h"
#include "engine/step_bench.h"
#include "server/serve_bench.h"

namespace monolayer::cli {

struct BenchFlags {
  server::ServeBenchOptions serve;
  std::string svg;
  std::string draft, guesses = "0,1,2,3,5,7", prompts;
  std::int64_t max_tokens = 128;
  std::string what, model, timeline, contexts = "128,1024", rows = "1", thread_list = "0",
                                     prefills = "512";
  std::int64_t repeats = 9;
  std::int64_t dense_layers = 3, sparse_layers = 57;
  std::int64_t query = 1;
  bool every_rank = false;
  std::string router_dtype = "bf16";
  bool json = false;
  RunFlags run;
  const CLI::App* app = nullptr;
  CLI::Option* ranks_set = nullptr;
};

// "1,4,16" to numbers within [low, high].
Result<std::vector<std::int64_t>> numbers(const char* flag, const std::string& text,
                                          std::int64_t low, std::int64_t high);

// Each prints nothing before it has a result.
Status bench_step(const BenchFlags& flags, const engine::StepBenchOptions& options,
                  const engine::OpenModel& model);
Status bench_layer(const BenchFlags& flags, const engine::StepBenchOptions& step,
                   const engine::OpenModel& model);
Status bench_speculation(const BenchFlags& flags);
Status bench_serve(const BenchFlags& flags);

}  // namespace monolayer::cli

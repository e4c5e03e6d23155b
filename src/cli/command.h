// What every subcommand is made of.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "cli/flags.h"
#include "core/status.h"
#include "engine/native_run.h"

namespace monolayer::cli {

struct Command {
  CLI::App* app = nullptr;
  std::function<Status()> run;
};

struct Program {
  CLI::App app{"Monolayer: an engine for MiniMax-M3 checkpoints", "monolayer"};
  Flags flags;
  std::vector<Command> commands;

  // A subcommand that refuses unknown flags.
  CLI::App& add(const std::string& name, const std::string& help, std::function<Status()> run);
};

void add_generate(Program& program);
void add_trace(Program& program);
void add_inspect(Program& program);
void add_synth(Program& program);
void add_quantize(Program& program);
void add_bench(Program& program);
void add_serve(Program& program);
void add_eval(Program& program);
void add_completion(Program& program);

// The model named by a flag, or the embedded one.
Result<std::string> model_or_embedded(const std::string& flag);

// --tensor-parallel-size, with the sizes there are.
CLI::Option* add_ranks(Flags& flags, CLI::App& app, std::int64_t& ranks);

// --kv-cache-dtype and --index-cache-dtype.
void add_cache_types(Flags& flags, CLI::App& app, engine::CacheTypes& types);

// Flags that say where and how a model runs; shared by generate, trace and bench.
struct RunFlags {
  std::string path = "auto";
  std::string backend = "cpu";
  std::int64_t tensor_parallel_size = 1;
  std::int64_t threads = 0;  // 0: one per physical core
  engine::CacheTypes cache_types;

  void add(Flags& flags, CLI::App& app, std::vector<std::string> paths, bool threads_flag = true);
  // Refuses by name what this version does not have.
  Status check() const;
};

}  // namespace monolayer::cli

#include "cli/command.h"

#include "engine/embedded_model.h"

namespace monolayer::cli {

CLI::App& Program::add(const std::string& name, const std::string& help,
                       std::function<Status()> run) {
  CLI::App* sub = app.add_subcommand(name, help);
  commands.push_back({sub, std::move(run)});
  return *sub;
}

Result<std::string> model_or_embedded(const std::string& flag) {
  if (!flag.empty()) return flag;
  return engine::embedded_model_folder();
}

CLI::Option* add_ranks(Flags& flags, CLI::App& app, std::int64_t& ranks) {
  return flags.one_of(app, "--tensor-parallel-size", ranks, {1, 2, 4, 8}, "Ranks");
}

void add_cache_types(Flags& flags, CLI::App& app, engine::CacheTypes& types) {
  const std::vector<std::string> words{"auto", "bf16", "fp8", "fp8_e4m3"};
  flags.choice(app, "--kv-cache-dtype", types.kv, words,
               "Element type of cached keys and values; auto: bf16");
  flags.choice(app, "--index-cache-dtype", types.index, words,
               "Element type of cached index keys; auto: bf16; on cuda that of keys and values");
}

void RunFlags::add(Flags& flags, CLI::App& app, std::vector<std::string> paths, bool threads_flag) {
  path = paths.front();
  flags.choice(app, "--path", path, std::move(paths), "How the model is computed");
  flags.choice(app, "--backend", backend, {"cpu", "cuda"}, "Device");
  add_ranks(flags, app, tensor_parallel_size);
  if (threads_flag)
    flags.integer(app, "--threads", threads, 0, 1024, "Worker threads; 0: one per physical core");
  add_cache_types(flags, app, cache_types);
}

Status RunFlags::check() const {
  if (path == "reference" && tensor_parallel_size > 1)
    return {Code::kUnsupported, "--tensor-parallel-size",
            "is " + std::to_string(tensor_parallel_size) + "; the reference path runs on 1"};
  return ok_status();
}

}  // namespace monolayer::cli

// `monolayer inspect`: what a checkpoint is, without loading it into memory.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "dispatch/report.h"
#include "engine/model_report.h"
#include "engine/native_run.h"

namespace monolayer::cli {

void add_inspect(Program& program) {
  struct InspectFlags {
    std::string model;
    bool json = false;
    std::int64_t ranks = 1;
    std::string backend = "cpu";
    engine::CacheTypes cache_types;
  };
  auto flags = std::make_shared<InspectFlags>();
  CLI::App& app =
      program.add("inspect", "Describe a checkpoint: shapes, formats, bytes", [flags]() -> Status {
        ML_ASSIGN_OR_RETURN(const auto model, engine::open_model(flags->model));
        ML_ASSIGN_OR_RETURN(const m3::ModelWeights weights,
                            m3::bind_weights(model->config, model->checkpoint));
        ML_ASSIGN_OR_RETURN(const cpu::CacheOptions cache,
                            engine::cache_options(flags->cache_types, flags->backend));
        const dispatch::DeploymentFacts facts = dispatch::deployment_facts(
            model->config, weights,
            {.tensor_parallel = flags->ranks, .kv_cache = cache.kv, .index_cache = cache.index});
        nlohmann::json report = engine::model_report(*model, weights);
        const std::int64_t bytes_per_token =
            cpu::CachePool::page_bytes(model->config, cache) / m3::kPageTokens;
        if (flags->json) {
          report["cache"] = {{"kv_cache_dtype", engine::cache_type_name(cache.kv)},
                             {"index_cache_dtype", engine::cache_type_name(cache.index)},
                             {"bytes_per_token", bytes_per_token}};
          report["fused_path"] = dispatch::deployment_json(facts);
          std::fputs((report.dump(2) + "\n").c_str(), stdout);
          return ok_status();
        }
        std::fputs(engine::model_report_text(report).c_str(), stdout);
        std::printf("caches as chosen: keys and values %s, index keys %s: %lld bytes per token\n",
                    engine::cache_type_name(cache.kv).c_str(),
                    engine::cache_type_name(cache.index).c_str(),
                    static_cast<long long>(bytes_per_token));
        std::fputs(dispatch::deployment_text(facts).c_str(), stdout);
        return ok_status();
      });
  program.flags.folder(app, "model", flags->model, "Folder, or a name in the Hugging Face cache")
      ->required();
  program.flags.choice(app, "--backend", flags->backend, {"cpu", "cuda"},
                       "Device whose rules choose the caches' element types; none is needed");
  add_ranks(program.flags, app, flags->ranks);
  add_cache_types(program.flags, app, flags->cache_types);
  program.flags.toggle(app, "--json", flags->json, "Print JSON");
}

}  // namespace monolayer::cli

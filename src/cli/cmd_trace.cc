// `monolayer trace`: hidden states, selected blocks and logits of given tokens.
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"
#include "engine/trace.h"
#include "m3/reference.h"

namespace monolayer::cli {
namespace {

struct TraceFlags {
  std::string model, tokens, out, rows;
  std::int64_t chunk = 512;
  RunFlags run;
};

// What a step gave, if the weights it read are still the file's.
Result<std::vector<float>> checked(const engine::OpenModel& model,
                                   Result<std::vector<float>> logits) {
  if (logits.ok()) ML_RETURN_IF_ERROR(model.checkpoint.verify_unchanged());
  return logits;
}

Status run_trace(const TraceFlags& flags) {
  ML_RETURN_IF_ERROR(flags.run.check());
  if (flags.run.path == "reference") {
    const engine::CacheTypes& types = flags.run.cache_types;
    for (const auto& [flag, type] :
         {std::pair{"--kv-cache-dtype", types.kv}, {"--index-cache-dtype", types.index}}) {
      if (type != "auto")
        return {Code::kUnsupported, flag,
                "is " + type + "; the reference path caches float32 only"};
    }
  }
  ML_ASSIGN_OR_RETURN(const std::string name, model_or_embedded(flags.model));
  ML_ASSIGN_OR_RETURN(const auto model, engine::open_model(name));
  ML_ASSIGN_OR_RETURN(const auto input,
                      engine::read_trace_input(flags.tokens, flags.rows, model->config.vocab_size));
  const auto tokens = static_cast<std::int64_t>(input.input_ids.size());
  if (flags.run.path == "reference") {
    ML_ASSIGN_OR_RETURN(const m3::ModelWeights weights, engine::load_weights(*model));
    m3::Reference reference(model->config, weights);
    return engine::write_trace(
        flags.out, model->config, input, flags.chunk,
        [&](std::span<const std::int32_t> ids, std::int64_t logit_rows, m3::TraceSink* sink) {
          return checked(*model, reference.forward(ids, logit_rows, sink));
        });
  }
  engine::NativeRunOptions options;
  options.backend = flags.run.backend;
  options.threads = static_cast<int>(flags.run.threads);
  options.cache_types = flags.run.cache_types;
  options.context_tokens = tokens;
  options.path = flags.run.path;
  options.ranks = static_cast<int>(flags.run.tensor_parallel_size);
  ML_ASSIGN_OR_RETURN(const auto native, engine::NativeRun::load(*model, options));
  return engine::write_trace(
      flags.out, model->config, input, flags.chunk,
      [&](std::span<const std::int32_t> ids, std::int64_t logit_rows, m3::TraceSink* sink) {
        return checked(*model, native->append(ids, logit_rows, sink));
      });
}

}  // namespace

void add_trace(Program& program) {
  auto flags = std::make_shared<TraceFlags>();
  Flags& f = program.flags;
  CLI::App& app = program.add("trace", "Write what a forward pass shows for given tokens",
                              [flags] { return run_trace(*flags); });
  f.folder(app, "--model", flags->model, "Folder or cached name; the embedded model if left out");
  f.file(app, "--tokens", flags->tokens, "JSON list, or safetensors with input_ids (and rows)")
      ->required();
  f.file(app, "--out", flags->out, "safetensors file to write")->required();
  f.text(app, "--rows", flags->rows, "Rows to keep: 0,5,10-20 or all");
  f.integer(app, "--chunk", flags->chunk, 1, std::int64_t{1} << 30,
            "Tokens of a prefill step; 1 decodes token by token");
  flags->run.add(f, app, {"native", "reference", "mono"});
}

}  // namespace monolayer::cli

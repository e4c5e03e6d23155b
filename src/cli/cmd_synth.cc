// `monolayer synth`: a random checkpoint of any shape.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include "checkpoint/text_io.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "engine/embedded_model.h"
#include "engine/memory_check.h"
#include "engine/model_loader.h"
#include "m3/draft_synth.h"
#include "m3/synth.h"
#include "m3/synth_plan.h"

namespace monolayer::cli {
namespace {

struct SynthFlags {
  std::string draft_for;
  std::string shape, format = "bf16", out, tokenizer_from;
  std::int64_t layers = 0, shard_mb = 5000;
  std::uint64_t seed = 0;
  bool force = false, quiet = false, json = false;
  std::vector<const CLI::Option*> of_shape;  // flags that a draft has no use for
};

Result<nlohmann::json> read_shape(const std::string& shape, std::string& name) {
  name = shape;
  if (shape == "m3") return m3::m3_shape();
  if (shape == "nano") {
    ML_ASSIGN_OR_RETURN(const std::string folder, engine::embedded_model_folder());
    name = folder + "/config.json";
  }
  ML_ASSIGN_OR_RETURN(const std::string text, read_text_file(name, std::size_t{16} << 20));
  return parse_json(text, name);
}

void report_written(const SynthFlags& flags, const std::string& format,
                    const m3::WriteReport& report, std::chrono::steady_clock::time_point start) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (flags.json) {
    const nlohmann::json json = {{"out", flags.out},          {"format", format},
                                 {"tensors", report.tensors}, {"bytes", report.tensor_bytes},
                                 {"shards", report.shards},   {"seconds", seconds}};
    std::printf("%s\n", json.dump().c_str());
    return;
  }
  if (flags.quiet) return;
  std::printf("%s: %llu tensors, %s in %zu file%s\n", flags.out.c_str(),
              static_cast<unsigned long long>(report.tensors),
              engine::format_bytes(static_cast<std::int64_t>(report.tensor_bytes)).c_str(),
              report.shards, report.shards == 1 ? "" : "s");
}

// A random EAGLE3 draft in the published names.
Status run_synth_draft(const SynthFlags& flags) {
  const std::string name = flags.draft_for == "nano" ? "" : flags.draft_for;
  ML_ASSIGN_OR_RETURN(const std::string target, model_or_embedded(name));
  ML_ASSIGN_OR_RETURN(const auto model, engine::open_model(target));
  std::error_code none;
  if (std::filesystem::equivalent(flags.out, target, none))
    return {Code::kInvalidArgument, "--out", flags.out + " is the model that the draft is for"};
  m3::DraftSynthOptions options;
  options.out = flags.out;
  options.seed = flags.seed;
  options.force = flags.force;
  const auto start = std::chrono::steady_clock::now();
  ML_ASSIGN_OR_RETURN(const m3::WriteReport report, m3::synthesize_draft(model->config, options));
  report_written(flags, "bf16", report, start);
  return ok_status();
}

Status run_synth(const SynthFlags& flags) {
  if (flags.draft_for.empty() == flags.shape.empty())
    return {Code::kInvalidArgument, "synth", "needs exactly one of --shape and --draft-for"};
  if (!flags.draft_for.empty()) {
    for (const CLI::Option* option : flags.of_shape)
      if (option->count() > 0)
        return {Code::kInvalidArgument, option->get_name(), "goes with --shape, not --draft-for"};
    return run_synth_draft(flags);
  }
  m3::SynthOptions options;
  ML_ASSIGN_OR_RETURN(options.config, read_shape(flags.shape, options.config_name));
  options.layers = flags.layers;
  options.format = flags.format;
  options.out = flags.out;
  options.seed = flags.seed;
  options.force = flags.force;
  options.max_shard_bytes = static_cast<std::uint64_t>(flags.shard_mb) * 1'000'000;
  if (!flags.tokenizer_from.empty() &&
      !std::filesystem::is_regular_file(flags.tokenizer_from + "/tokenizer.json"))
    return {Code::kIoError, flags.tokenizer_from, "is no folder with a tokenizer.json"};
  options.text_from = flags.tokenizer_from;
  Progress progress("writing", flags.quiet);
  options.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
  const auto start = std::chrono::steady_clock::now();
  ML_ASSIGN_OR_RETURN(const m3::WriteReport report, m3::synthesize(options));
  progress.finish();
  report_written(flags, flags.format, report, start);
  return ok_status();
}

}  // namespace

void add_synth(Program& program) {
  auto flags = std::make_shared<SynthFlags>();
  Flags& f = program.flags;
  CLI::App& app = program.add("synth", "Write a random checkpoint of any shape",
                              [flags] { return run_synth(*flags); });
  f.file(app, "--shape", flags->shape, "m3, nano, or a config.json");
  f.folder(app, "--draft-for", flags->draft_for,
           "Instead: an EAGLE3 draft for this model, or nano");
  f.folder(app, "--out", flags->out, "Folder to write, new or empty")->required();
  const auto of_shape = [&](const CLI::Option* option) { flags->of_shape.push_back(option); };
  of_shape(f.integer(app, "--layers", flags->layers, 1, 100000,
                     "Layers; the layer pattern is cut, or its last entry repeated"));
  of_shape(f.choice(app, "--format", flags->format, m3::format_names(),
                    "Storage format of the matrices"));
  f.seed(app, "--seed", flags->seed, "Seed of the values");
  of_shape(f.integer(app, "--shard-mb", flags->shard_mb, 1, 1000000, "Largest file, in MB"));
  of_shape(f.folder(app, "--tokenizer-from", flags->tokenizer_from,
                    "Folder whose tokenizer and chat template are copied"));
  f.toggle(app, "--force", flags->force, "Replace the model in a folder that is not empty");
  f.toggle(app, "--json", flags->json, "Report as JSON");
  f.toggle(app, "--quiet", flags->quiet, "No progress, no report");
}

}  // namespace monolayer::cli

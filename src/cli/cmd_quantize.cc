// `monolayer quantize`: a checkpoint in another storage format.
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/progress.h"
#include "engine/memory_check.h"
#include "engine/model_loader.h"
#include "m3/quantize.h"

namespace monolayer::cli {
namespace {

struct QuantizeFlags {
  std::string model, out, format, rule = "ocp";
  std::int64_t shard_mb = 5000;
  bool force = false, quiet = false, json = false;
};

Status run_quantize(const QuantizeFlags& flags) {
  ML_ASSIGN_OR_RETURN(const auto model, engine::open_model(flags.model));
  ML_ASSIGN_OR_RETURN(const m3::ModelWeights weights,
                      m3::bind_weights(model->config, model->checkpoint));
  m3::QuantizeOptions options;
  options.format = flags.format;
  options.out = flags.out;
  options.rule = flags.rule == "even" ? MxRule::kEven : MxRule::kOcp;
  options.force = flags.force;
  options.max_shard_bytes = static_cast<std::uint64_t>(flags.shard_mb) * 1'000'000;
  Progress progress("writing", flags.quiet);
  options.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
  ML_ASSIGN_OR_RETURN(const m3::WriteReport report,
                      m3::quantize_checkpoint(model->checkpoint, model->config, weights, options));
  progress.finish();
  const auto before = static_cast<std::int64_t>(model->checkpoint.tensor_bytes());
  const auto after = static_cast<std::int64_t>(report.tensor_bytes);
  if (flags.json) {
    const nlohmann::json json = {{"out", flags.out},          {"format", flags.format},
                                 {"tensors", report.tensors}, {"bytes", after},
                                 {"bytes_before", before},    {"shards", report.shards}};
    std::printf("%s\n", json.dump().c_str());
  } else if (!flags.quiet) {
    std::printf("%s: %llu tensors, %s in %zu file%s (before: %s)\n", flags.out.c_str(),
                static_cast<unsigned long long>(report.tensors),
                engine::format_bytes(after).c_str(), report.shards, report.shards == 1 ? "" : "s",
                engine::format_bytes(before).c_str());
  }
  return ok_status();
}

}  // namespace

void add_quantize(Program& program) {
  auto flags = std::make_shared<QuantizeFlags>();
  Flags& f = program.flags;
  CLI::App& app = program.add("quantize", "Write a checkpoint in another storage format",
                              [flags] { return run_quantize(*flags); });
  f.folder(app, "--model", flags->model, "Folder, or a name in the Hugging Face cache")->required();
  f.folder(app, "--out", flags->out, "Folder to write, new or empty")->required();
  f.choice(app, "--format", flags->format, m3::format_names(),
           "Parts a format does not name keep theirs")
      ->required();
  f.choice(app, "--rule", flags->rule, {"ocp", "even"}, "How an MX group's exponent is chosen");
  f.integer(app, "--shard-mb", flags->shard_mb, 1, 1000000, "Largest file, in MB");
  f.toggle(app, "--force", flags->force, "Replace the model in a folder that is not empty");
  f.toggle(app, "--json", flags->json, "Report as JSON");
  f.toggle(app, "--quiet", flags->quiet, "No progress, no report");
}

}  // namespace monolayer::cli

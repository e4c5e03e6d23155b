// `monolayer inspect`: what a checkpoint is, without loading it into memory.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "engine/model_report.h"

namespace monolayer::cli {

void add_inspect(Program& program) {
  struct InspectFlags {
    std::string model;
    bool json = false;
  };
  auto flags = std::make_shared<InspectFlags>();
  CLI::App& app =
      program.add("inspect", "Describe a checkpoint: shapes, formats, bytes", [flags]() -> Status {
        ML_ASSIGN_OR_RETURN(const auto model, engine::open_model(flags->model));
        ML_ASSIGN_OR_RETURN(const m3::ModelWeights weights,
                            m3::bind_weights(model->config, model->checkpoint));
        const nlohmann::json report = engine::model_report(*model, weights);
        std::fputs(flags->json ? (report.dump(2) + "\n").c_str()
                               : engine::model_report_text(report).c_str(),
                   stdout);
        return ok_status();
      });
  program.flags.folder(app, "model", flags->model, "Folder, or a name in the Hugging Face cache")
      ->required();
  program.flags.toggle(app, "--json", flags->json, "Print JSON");
}

}  // namespace monolayer::cli

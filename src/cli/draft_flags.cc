#include "cli/draft_flags.h"

#include "engine/embedded_model.h"
#include "m3/draft.h"

namespace monolayer::cli {

void DraftFlags::add(Flags& flags, CLI::App& app, std::int64_t otherwise) {
  guesses = otherwise;
  flags.folder(app, "--draft-model", model, "EAGLE3 draft to speculate with; none if left out");
  guesses_set = flags.integer(app, "--num-speculative-tokens", guesses, 0, m3::kMostDrafts,
                              "Guesses of a step, " + std::to_string(otherwise) +
                                  " with a draft if left out; 0 loads no draft");
}

Result<std::unique_ptr<engine::OpenDraft>> DraftFlags::open(const std::string& target,
                                                            const m3::ModelConfig& config) const {
  const bool asked = guesses_set->count() > 0;
  std::string draft = model;
  if (asked && guesses > 0 && draft.empty()) {
    if (!target.empty())
      return Status(Code::kInvalidArgument, "--num-speculative-tokens", "needs --draft-model");
    ML_ASSIGN_OR_RETURN(draft, engine::embedded_draft_folder());
  }
  if (draft.empty() || guesses == 0) return std::unique_ptr<engine::OpenDraft>();
  return engine::open_draft(draft, config);
}

}  // namespace monolayer::cli

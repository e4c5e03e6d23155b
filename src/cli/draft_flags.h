// --draft-model and --num-speculative-tokens of generate and eval.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/flags.h"
#include "core/status.h"
#include "engine/draft_model.h"

namespace monolayer::cli {

struct DraftFlags {
  std::string model;
  std::int64_t guesses = 0;  // of a step; the command's own number if left out
  CLI::Option* guesses_set = nullptr;

  // `otherwise`: guesses with a draft and no number.
  void add(Flags& flags, CLI::App& app, std::int64_t otherwise);
  // The named draft, or the embedded model's own where guesses are asked for and `target`, the
  // --model flag, is left out; null for none. A number without a draft for the named target is
  // refused.
  Result<std::unique_ptr<engine::OpenDraft>> open(const std::string& target,
                                                  const m3::ModelConfig& config) const;
};

}  // namespace monolayer::cli

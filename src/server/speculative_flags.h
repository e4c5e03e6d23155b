// Which draft runs, how many guesses, and whether their acceptance is real: from the flags of both
// vLLM and ATOM to one answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/speculation.h"

namespace monolayer::server {

struct SpeculativeFlags {
  std::string config;               // --speculative-config, a JSON object
  std::string method, draft_model;  // --method, --draft-model
  std::optional<std::int64_t> tokens;
  std::optional<double> length, rate;  // --spec-decode-acceptance-length, -rate
  // A draft that belongs to the model, used when only a number of tokens is given; empty: none.
  std::string own_draft;
};

struct SpeculationChoice {
  std::string draft;  // folder or name; empty: no speculation, nothing is loaded
  engine::SpeculationOptions options;
  std::string acceptance = "standard";  // or "synthetic"
  double mean_length = 0;               // synthetic: tokens of a step
};

// kInvalidArgument or kUnsupported naming the flag or the key of --speculative-config and its
// bound. Zero tokens win over everything that names a draft.
Result<SpeculationChoice> choose_speculation(const SpeculativeFlags& flags);

}  // namespace monolayer::server

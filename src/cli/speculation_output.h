// What is told of a run's speculation.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "engine/speculation.h"

namespace monolayer::cli {

// Of single sequences, the target's own token included. There was a step.
double tokens_a_step(const engine::SpeculationStats& stats);
nlohmann::json speculation_json(const engine::SpeculationStats& stats, const std::string& draft);

}  // namespace monolayer::cli

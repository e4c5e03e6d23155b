// The deployment table as people and tools read it.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "dispatch/refusals.h"

namespace monolayer::dispatch {

// {"tensor_parallel": 1, "accepted": true, "rows": [{"name", "value", "bound", "holds"}]}
nlohmann::json deployment_json(const DeploymentFacts& facts);
// One line a row, refusals first, each with the value found and the bound.
std::string deployment_text(const DeploymentFacts& facts);

}  // namespace monolayer::dispatch

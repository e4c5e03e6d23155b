#include "dispatch/report.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace monolayer::dispatch {

nlohmann::json deployment_json(const DeploymentFacts& facts) {
  nlohmann::json rows = nlohmann::json::array();
  for (const RowOutcome& row : check_deployment(facts)) {
    rows.push_back(
        {{"name", row.name}, {"value", row.value}, {"bound", row.bound}, {"holds", row.holds}});
  }
  return {{"tensor_parallel", facts.tensor_parallel.get()},
          {"accepted", deployment_status(facts).ok()},
          {"rows", std::move(rows)}};
}

std::string deployment_text(const DeploymentFacts& facts) {
  std::vector<RowOutcome> rows = check_deployment(facts);
  const auto failed = std::stable_partition(rows.begin(), rows.end(),
                                            [](const RowOutcome& row) { return !row.holds; });
  std::string text =
      "fused path at tensor-parallel size " + std::to_string(facts.tensor_parallel.get()) + ": ";
  const auto refused = failed - rows.begin();
  text += refused == 0 ? "all " + std::to_string(rows.size()) + " conditions hold\n"
                       : "refused by " + std::to_string(refused) + " of " +
                             std::to_string(rows.size()) + " conditions\n";
  std::size_t width = 0;
  for (const RowOutcome& row : rows) width = std::max(width, row.name.size());
  for (const RowOutcome& row : rows) {
    text += row.holds ? "  ok  " : "  NO  ";
    text += std::string(row.name) + std::string(width - row.name.size() + 2, ' ') + row.value +
            "  (needs " + std::string(row.bound) + ")\n";
  }
  return text;
}

}  // namespace monolayer::dispatch

#include "cli/speculation_output.h"

namespace monolayer::cli {

double tokens_a_step(const engine::SpeculationStats& s) {
  return 1 + static_cast<double>(s.accepted) / static_cast<double>(s.steps);
}

nlohmann::json speculation_json(const engine::SpeculationStats& s, const std::string& draft) {
  nlohmann::json positions = nlohmann::json::array();
  for (std::int64_t i = 0; i < s.tokens; ++i)
    positions.push_back(s.accepted_at[static_cast<std::size_t>(i)]);
  return {{"draft", draft},
          {"num_speculative_tokens", s.tokens},
          {"steps_of_sequences", s.steps},
          {"guesses", s.guesses},
          {"accepted", s.accepted},
          {"accepted_at", positions},
          {"tokens_per_step", tokens_a_step(s)}};
}

}  // namespace monolayer::cli

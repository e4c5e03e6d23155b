#include "engine/logit_rules.h"

#include <algorithm>
#include <limits>
#include <string>

namespace monolayer::engine {

Status check_rules(const LogitRules& rules, std::int64_t vocab_size) {
  const auto refuse = [](const char* name, double value, const char* bound) {
    return Status(Code::kInvalidArgument, name,
                  "is " + std::to_string(value) + ", must be " + bound);
  };
  if (!(rules.presence_penalty >= -2 && rules.presence_penalty <= 2))
    return refuse("presence_penalty", rules.presence_penalty, "in [-2, 2]");
  if (!(rules.frequency_penalty >= -2 && rules.frequency_penalty <= 2))
    return refuse("frequency_penalty", rules.frequency_penalty, "in [-2, 2]");
  if (!(rules.repetition_penalty > 0 && rules.repetition_penalty <= 2))
    return refuse("repetition_penalty", rules.repetition_penalty, "in (0, 2]");
  for (const auto& [id, value] : rules.bias) {
    if (id < 0 || id >= vocab_size)
      return {Code::kInvalidArgument, "logit_bias",
              "names token " + std::to_string(id) + ", must be from 0 to " +
                  std::to_string(vocab_size - 1)};
    if (!(value >= -100 && value <= 100)) return refuse("logit_bias", value, "in [-100, 100]");
  }
  return ok_status();
}

LogitProcessor::LogitProcessor(LogitRules rules, std::span<const std::int32_t> prompt)
    : rules_(std::move(rules)) {
  if (rules_.repetition_penalty == 1) return;
  for (const std::int32_t id : prompt) counts_.try_emplace(id, 0);
}

void LogitProcessor::apply(std::span<float> logits, std::span<const std::int32_t> banned) const {
  for (const auto& [id, value] : rules_.bias) logits[static_cast<std::size_t>(id)] += value;
  const auto repetition = static_cast<float>(rules_.repetition_penalty);
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const auto& [id, count] : counts_) {
    float& logit = logits[static_cast<std::size_t>(id)];
    // A penalty near 0 must not make an infinity, which has no place in a distribution.
    if (repetition != 1)
      logit = logit > 0 ? std::min(logit / repetition, kMost) : logit * repetition;
    if (count == 0) continue;
    logit -= static_cast<float>(rules_.frequency_penalty * static_cast<double>(count));
    logit -= static_cast<float>(rules_.presence_penalty);
  }
  for (const std::int32_t id : banned)
    if (id >= 0 && id < static_cast<std::int64_t>(logits.size()))
      logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
}

}  // namespace monolayer::engine

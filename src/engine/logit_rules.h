// What a request does to the logits before a token is drawn: bias, penalties, banned tokens.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/status.h"

namespace monolayer::engine {

struct LogitRules {
  // Added once to every token generated before / times how often it was. [-2, 2] each.
  double presence_penalty = 0, frequency_penalty = 0;
  // Divides positive logits of tokens in prompt or output, multiplies negative ones. (0, 2].
  double repetition_penalty = 1;
  std::vector<std::pair<std::int32_t, float>> bias;  // token, [-100, 100]
  bool empty() const {
    return presence_penalty == 0 && frequency_penalty == 0 && repetition_penalty == 1 &&
           bias.empty();
  }
};

// kInvalidArgument naming the parameter and its bound.
Status check_rules(const LogitRules& rules, std::int64_t vocab_size);

// The rules of one request and what it has said so far. Order: bias, penalties, then bans.
class LogitProcessor {
 public:
  LogitProcessor(LogitRules rules, std::span<const std::int32_t> prompt);
  // `banned` tokens get no probability.
  void apply(std::span<float> logits, std::span<const std::int32_t> banned) const;
  void generated(std::int32_t id) {
    if (!rules_.empty()) ++counts_[id];
  }

 private:
  LogitRules rules_;
  std::unordered_map<std::int32_t, std::int64_t> counts_;  // generated; 0: in the prompt only
};

}  // namespace monolayer::engine

// What the engine is asked for and what it answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "engine/logit_rules.h"
#include "engine/output_text.h"
#include "engine/sampler.h"

namespace monolayer::engine {

struct Request {
  std::vector<std::int32_t> prompt;
  SamplingParams sampling;
  LogitRules rules;
  // Most tokens to generate; 0 only for prompt logprobs without an answer.
  std::int64_t max_tokens = 16;
  std::int64_t min_tokens = 0;         // end tokens and stop strings are off until then
  std::vector<std::int32_t> eos_ids;   // end the answer unless ignore_eos
  std::vector<std::int32_t> stop_ids;  // end the answer always
  bool ignore_eos = false;
  OutputTextOptions text;
  std::int64_t logprobs = -1;         // best tokens beside each generated one; -1: none at all
  std::int64_t prompt_logprobs = -1;  // the same for the prompt's own tokens; no prefix cache then
  std::string cache_salt;             // prefixes are shared among equal salts only
  std::uint64_t after = 0;            // waits for that request's prompt, to share its blocks
};

enum class FinishReason : std::uint8_t { kStop, kLength, kAbort, kError };
std::string_view finish_name(FinishReason reason);  // stop, length, abort, error

struct RequestTimes {
  using Clock = std::chrono::steady_clock;
  Clock::time_point arrival, first_scheduled, first_token, last_token;
};

// What one step gave one request.
struct RequestOutput {
  std::uint64_t id = 0;
  std::vector<std::int32_t> tokens;       // all that were drawn, with the one that ended the answer
  std::string text;                       // without end tokens; cut before a stop string
  std::vector<Logprobs> logprobs;         // of `tokens`, if asked for
  std::vector<Logprobs> prompt_logprobs;  // of the prompt's tokens from its second on, in order
  std::optional<FinishReason> finish;
  std::string stop_string;    // the one that matched
  std::int32_t stop_id = -1;  // the token that ended it
  Status error;               // with kError
  std::int64_t cached_tokens = 0;
  std::int64_t preemptions = 0;
  RequestTimes times;
};

}  // namespace monolayer::engine

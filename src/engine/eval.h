// How often a model is right: greedy answers through the engine, in batches.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/eval_set.h"
#include "engine/speculation.h"
#include "engine/step_model.h"
#include "text/tokenizer.h"

namespace monolayer::engine {

struct Interval {
  double low = 0, high = 0;
};
// Wilson's 95 % interval of a share; 0 to 1 for no trial.
Interval wilson(std::int64_t hits, std::int64_t trials);

struct EvalTask {
  std::string name;
  // Questions. Every one is in exactly one of the five.
  std::int64_t asked = 0;
  std::int64_t exact = 0;      // the content equals the answer
  std::int64_t wrong = 0;      // a whole reply with another content
  std::int64_t truncated = 0;  // no end mark within max_tokens
  std::int64_t unparsed = 0;   // ended inside its reasoning, or without a content
  std::int64_t failed = 0;     // the engine gave an error
  Interval exact_interval;
  std::int64_t prompt_tokens = 0, longest_prompt = 0, reply_tokens = 0;
  // Texts: exp of the mean negative log-likelihood a token, the first token of a text not counted.
  std::int64_t texts = 0, predicted_tokens = 0;
  double perplexity = 0;
  Interval perplexity_interval;  // 95 %, from the spread between texts; needs two of them
};

// One question that did not come out exact, for people to look at.
struct EvalMiss {
  std::string task, answer, reply;
  std::int64_t line = 0;  // as EvalItem::line
};

struct EvalReport {
  std::vector<EvalTask> tasks;  // in order of appearance
  std::vector<EvalMiss> misses;
  std::int64_t steps = 0;
  SpeculationStats speculation;
  double seconds = 0;
};

struct EvalOptions {
  std::int64_t rows = 16;          // sequences at once
  std::int64_t step_tokens = 512;  // rows of a step with prompts
  std::vector<std::int32_t> eos_ids;
  cpu::ThreadTeam* team = nullptr;   // as EngineOptions::team
  Speculator* speculator = nullptr;  // borrowed; null: no speculation. Changes no answer
  std::int64_t misses = 20;          // kept at most
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

// The pool that `rows` of these items need at once, in tokens.
std::int64_t eval_pool_tokens(const std::vector<EvalItem>& items, std::int64_t rows);

// Answers do not depend on `rows`. A question that the engine cannot answer counts as failed; the
// engine's own error when it stops.
Result<EvalReport> run_eval(StepModel& model, const Tokenizer& tokenizer,
                            const std::vector<EvalItem>& items, const EvalOptions& options);

}  // namespace monolayer::engine

// A request on its way through the engine; for the engine's own files.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/logit_rules.h"
#include "engine/output_text.h"
#include "engine/request.h"
#include "engine/sequence.h"

namespace monolayer::engine {

struct Engine::Live {
  Live(Request r, const Tokenizer& tokenizer)
      : request(std::move(r)),
        processor(request.rules, request.prompt),
        text(tokenizer, std::move(request.text)) {}

  Request request;
  Sequence sequence;
  LogitProcessor processor;
  OutputText text;
  std::vector<std::int32_t> held_ids;  // what may not be drawn before min_tokens
  std::int64_t prompt_rows_done = 0;
  bool seen = false;
  RequestTimes times;
};

}  // namespace monolayer::engine

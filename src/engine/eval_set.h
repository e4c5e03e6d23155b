// Questions with their right answers, and texts to be predicted, from a JSONL file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/prompt.h"
#include "m3/config.h"

namespace monolayer::engine {

// One line. A question is answered and its content compared; a text is only predicted.
struct EvalItem {
  std::string task;
  std::int64_t line = 0;  // of the file, from 1
  Prompt prompt;          // of a text: all of it, control tokens counting as such
  bool predict = false;   // a text
  std::string answer;     // the content that is right
  std::int64_t max_tokens = 0;
};

// Lines of `path`, a JSON object each:
//   {"task": T, "messages": [...], "answer": A, "max_tokens": N, "thinking": M, "tools": [...]}
//   {"task": T, "text": X}
// "thinking" and "tools" may be left out. `limit` > 0: no more than so many of each task. An empty
// line, an unknown key, a prompt that leaves no room for max_tokens in `config`'s positions, or
// nothing at all is kInvalidFile naming file and line.
Result<std::vector<EvalItem>> read_eval_set(const std::string& path, const TextModel& text,
                                            const m3::ModelConfig& config, std::int64_t limit);

}  // namespace monolayer::engine

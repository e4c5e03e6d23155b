// What is done to messages before a template sees them.
#pragma once

#include "core/status.h"
#include "text/jinja/value.h"

namespace monolayer {

// A list of mappings, each with a string "role". Arguments of tool calls given as JSON text are
// parsed (empty or null text: no arguments; text that is no object: {"_raw": text}); "reasoning" is
// copied to "reasoning_content" where that is absent or null. Errors name the field, as in
// messages[2].tool_calls[0].function.arguments.
Result<jinja::Value> normalize_messages(const jinja::Value& messages);

}  // namespace monolayer

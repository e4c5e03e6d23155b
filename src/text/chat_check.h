// What a chat may hold, whether it comes in a request or in a file. A template passes over roles,
// parts and fields that it does not know; the answer would be to another question.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "text/chat.h"

namespace monolayer {

struct ChatLimits {
  static constexpr std::size_t kMessages = 100000;
  static constexpr std::size_t kTools = 512;
  static constexpr int kNesting = 64;  // of the JSON text that holds them
};

// kInvalidArgument: the subject is the field's path, as in messages[2].tool_calls[0].type.
Status check_messages(const jinja::Value& messages);
// A list of {"type": "function", "function": {name, description, parameters}}; null: none.
Status check_tools(const jinja::Value& tools);
// `kwargs` of a chat: a mapping or null, whose thinking_mode is a known one.
Status check_kwargs(const jinja::Value& kwargs);
Status check_thinking_mode(std::string_view mode, const std::string& path);
// All of the above.
Status check_chat(const ChatInput& input);

// [A-Za-z_][A-Za-z0-9_-]*, at most 128 bytes; what it must be, for messages.
bool is_tool_name(std::string_view name);
inline constexpr const char* kToolNameRule =
    "must be a string of letters, digits, _ and -, beginning with a letter or _, of at most 128";

// Deepest nesting of brackets outside strings.
int json_nesting(std::string_view text);

// A checked chat from the text of a file: what parse_chat takes. Errors name `subject` and field.
Result<ChatInput> read_chat(std::string_view json, std::string_view subject);

}  // namespace monolayer

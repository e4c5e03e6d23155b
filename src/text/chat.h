// Chat messages to prompt text, by the checkpoint's own template.
#pragma once

#include <ctime>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "text/jinja/template.h"
#include "text/tokenizer_added.h"

namespace monolayer {

// What a chat request gives to the template. Values made by jinja::from_json or jinja::parse_json
// are untrusted, which is what user input must be.
struct ChatInput {
  // List of mappings: role, content (string, list of parts or null), reasoning_content,
  // tool_calls, ... as in the OpenAI request.
  jinja::Value messages;
  // List of mappings, or none.
  jinja::Value tools;
  bool add_generation_prompt = true;
  std::optional<std::string> thinking_mode;   // enabled, disabled, adaptive
  std::optional<std::string> model_identity;  // replaces the template's own sentence
  // Further template variables (the request's chat_template_kwargs): a mapping, or none.
  jinja::Value kwargs;
  // What the template's clock shows; absent: the local time.
  std::optional<std::tm> now;
};

// From request bodies; key order is kept in `ordered_json` only. Errors name the field.
Result<ChatInput> chat_input(const nlohmann::ordered_json& messages,
                             const nlohmann::ordered_json& tools);
// From the text of a messages file: a list of messages, or an object with "messages" and
// optionally "tools", "add_generation_prompt", "thinking_mode", "model_identity" and
// "chat_template_kwargs". Other keys are refused by name.
Result<ChatInput> parse_chat(std::string_view json, std::string_view subject);

// The thinking mode a template will see: of kwargs, else of the chat itself, else empty.
std::string thinking_of(const ChatInput& input);
// Has it see this one.
void set_thinking(ChatInput& input, const std::string& mode);

// A piece of the prompt. The text of control tokens means such tokens only inside trusted pieces:
// those the template wrote itself. Text that came with the request is never trusted.
struct TextSegment {
  std::string text;
  bool trusted = false;
  bool operator==(const TextSegment&) const = default;
};

// The prompt as the tokenizer takes it: EncodeOptions{.allow_special = true, .literal = ...}.
struct ChatPrompt {
  std::string text;
  std::vector<TextSpan> literal;  // untrusted bytes, in which no control token is recognised
};

// Immutable; rendering from several threads at once is fine.
class ChatTemplate {
 public:
  // chat_template.jinja of a model folder, else "chat_template" of its tokenizer_config.json (a
  // string, or a list of named ones of which "default" is taken). kNotFound if it has neither.
  static Result<ChatTemplate> load(const std::filesystem::path& folder,
                                   const jinja::Limits& limits = {});
  // `special_tokens`: mapping of bos_token, eos_token, ... to text, or none.
  static Result<ChatTemplate> from_source(std::string_view source, std::string name,
                                          jinja::Value special_tokens = {},
                                          const jinja::Limits& limits = {});

  // The prompt. Before templating, arguments of tool calls given as JSON text become mappings, and
  // "reasoning" of a message becomes "reasoning_content" if that is absent. Errors name the
  // message's field or the template's line.
  Result<std::string> render(const ChatInput& input) const;
  Result<ChatPrompt> render_prompt(const ChatInput& input) const;
  // The same text in pieces; neighbours differ in trust, none is empty.
  Result<std::vector<TextSegment>> render_segments(const ChatInput& input) const;

 private:
  ChatTemplate(jinja::Template parsed, jinja::Value special_tokens)
      : template_(std::move(parsed)), special_tokens_(std::move(special_tokens)) {}
  Result<jinja::Rendered> render_marked(const ChatInput& input) const;

  jinja::Template template_;
  jinja::Value special_tokens_;
};

}  // namespace monolayer

#include "text/chat.h"

#include <array>
#include <fstream>
#include <system_error>
#include <utility>

#include "text/chat_messages.h"
#include "text/jinja/json.h"

namespace monolayer {

namespace {

using jinja::DictBuilder;
using jinja::Kind;
using jinja::Value;

constexpr std::size_t kLargestConfig = std::size_t{16} << 20;
constexpr std::array<std::string_view, 7> kSpecialTokens = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
// Variables that the request's kwargs may not replace.
constexpr std::array<std::string_view, 3> kReserved = {"messages", "tools",
                                                       "add_generation_prompt"};

Result<std::string> read_file(const std::filesystem::path& path, std::size_t limit) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Status(Code::kNotFound, path.string(), "not a file");
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return Status(Code::kIoError, path.string(), error.message());
  if (size > limit) {
    return Status(Code::kResourceExhausted, path.string(),
                  std::to_string(size) + " bytes: at most " + std::to_string(limit));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file) return Status(Code::kIoError, path.string(), "cannot be read");
  return text;
}

// The text of a special token: a string, or an object with "content".
const Value* token_text(const Value& config, std::string_view name) {
  const Value* value = config.dict().find(name);
  if (value != nullptr && value->is(Kind::kDict)) {
    value = value->dict().find(std::string_view("content"));
  }
  return value != nullptr && value->is(Kind::kString) ? value : nullptr;
}

Value special_tokens(const Value& config) {
  DictBuilder tokens(nullptr);
  for (const std::string_view name : kSpecialTokens) {
    if (const Value* text = token_text(config, name)) {
      tokens.add(Value::literal(std::string(name)), *text);
    }
  }
  return tokens.finish();
}

// "chat_template" of tokenizer_config.json: a string, or a list of {name, template}.
Result<std::string> configured_template(const Value& config, const std::string& subject) {
  const Value* value = config.dict().find(std::string_view("chat_template"));
  if (value == nullptr || value->is(Kind::kNone)) {
    return Status(Code::kNotFound, subject, "no chat_template");
  }
  if (value->is(Kind::kString)) return value->str().bytes;
  if (value->is(Kind::kList)) {
    for (const Value& entry : value->list().items) {
      if (!entry.is(Kind::kDict)) continue;
      const Value* name = entry.dict().find(std::string_view("name"));
      const Value* source = entry.dict().find(std::string_view("template"));
      if (name != nullptr && name->is(Kind::kString) && name->str().bytes == "default" &&
          source != nullptr && source->is(Kind::kString)) {
        return source->str().bytes;
      }
    }
  }
  return Status(Code::kInvalidFile, subject,
                "chat_template: expected a string or a list with one named \"default\"");
}

}  // namespace

Result<ChatTemplate> ChatTemplate::from_source(std::string_view source, std::string name,
                                               Value tokens, const jinja::Limits& limits) {
  ML_ASSIGN_OR_RETURN(jinja::Template parsed,
                      jinja::Template::parse(source, std::move(name), limits));
  return ChatTemplate(std::move(parsed), std::move(tokens));
}

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder,
                                        const jinja::Limits& limits) {
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  const std::filesystem::path template_path = folder / "chat_template.jinja";
  Value config;
  if (const auto text = read_file(config_path, kLargestConfig); text.ok()) {
    auto parsed = jinja::parse_json(*text, config_path.string(), jinja::Trust::kTrusted);
    if (!parsed.ok() || !parsed->is(Kind::kDict)) {
      const std::string why = parsed.ok() ? "not a JSON object" : parsed.status().message();
      return Status(Code::kInvalidFile, config_path.string(), why);
    }
    config = *std::move(parsed);
  } else if (text.status().code() != Code::kNotFound) {
    return text.status();
  }
  const Value tokens = config.is(Kind::kDict) ? special_tokens(config) : Value();

  if (const auto source = read_file(template_path, limits.source_bytes); source.ok()) {
    return from_source(*source, template_path.string(), tokens, limits);
  } else if (source.status().code() != Code::kNotFound) {
    return source.status();
  }
  if (config.is(Kind::kDict)) {
    const auto source = configured_template(config, config_path.string());
    if (source.ok()) {
      return from_source(*source, config_path.string() + ": chat_template", tokens, limits);
    }
    if (source.status().code() != Code::kNotFound) return source.status();
  }
  return Status(Code::kNotFound, folder.string(),
                "no chat template: neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json");
}

Result<jinja::Rendered> ChatTemplate::render_marked(const ChatInput& input) const {
  ML_ASSIGN_OR_RETURN(Value messages, normalize_messages(input.messages));
  if (!input.tools.is(Kind::kNone) && !input.tools.is(Kind::kList)) {
    return Status(Code::kInvalidArgument, "tools", "not a list");
  }
  if (!input.kwargs.is(Kind::kNone) && !input.kwargs.is(Kind::kDict)) {
    return Status(Code::kInvalidArgument, "chat_template_kwargs", "not an object");
  }
  DictBuilder variables(nullptr);
  const auto set = [&](std::string_view name, Value value) {
    variables.add(Value::literal(std::string(name)), std::move(value));
  };
  if (special_tokens_.is(Kind::kDict)) {
    for (const auto& [name, text] : special_tokens_.dict().entries) variables.add(name, text);
  }
  set("messages", std::move(messages));
  set("tools", input.tools);
  set("documents", Value());
  set("add_generation_prompt", Value::boolean(input.add_generation_prompt));
  if (input.thinking_mode) set("thinking_mode", Value::untrusted(*input.thinking_mode));
  if (input.model_identity) set("model_identity", Value::untrusted(*input.model_identity));
  if (input.kwargs.is(Kind::kDict)) {
    for (const auto& [name, value] : input.kwargs.dict().entries) {
      for (const std::string_view reserved : kReserved) {
        if (name.str().bytes == reserved) {
          return Status(Code::kInvalidArgument, "chat_template_kwargs." + name.str().bytes,
                        "is not a template argument of its own");
        }
      }
      variables.add(name, value);
    }
  }
  jinja::RenderOptions options;
  options.now = input.now;
  return template_.render(variables.finish(), options);
}

Result<std::string> ChatTemplate::render(const ChatInput& input) const {
  ML_ASSIGN_OR_RETURN(jinja::Rendered rendered, render_marked(input));
  return std::move(rendered.text);
}

Result<ChatPrompt> ChatTemplate::render_prompt(const ChatInput& input) const {
  ML_ASSIGN_OR_RETURN(jinja::Rendered rendered, render_marked(input));
  ChatPrompt prompt;
  for (const jinja::Mark& mark : rendered.untrusted) {
    prompt.literal.push_back({mark.begin, mark.end});
  }
  prompt.text = std::move(rendered.text);
  return prompt;
}

Result<std::vector<TextSegment>> ChatTemplate::render_segments(const ChatInput& input) const {
  ML_ASSIGN_OR_RETURN(const jinja::Rendered rendered, render_marked(input));
  std::vector<TextSegment> segments;
  const auto add = [&](std::size_t begin, std::size_t end, bool trusted) {
    if (begin < end) segments.push_back({rendered.text.substr(begin, end - begin), trusted});
  };
  std::size_t at = 0;
  for (const jinja::Mark& mark : rendered.untrusted) {
    add(at, mark.begin, true);
    add(mark.begin, mark.end, false);
    at = mark.end;
  }
  add(at, rendered.text.size(), true);
  return segments;
}

}  // namespace monolayer

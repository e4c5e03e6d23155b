#include "text/chat_messages.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "text/chat.h"
#include "text/jinja/json.h"

namespace monolayer {

namespace {

using jinja::DictBuilder;
using jinja::DictData;
using jinja::Flavor;
using jinja::Kind;
using jinja::ListBuilder;
using jinja::Value;

Status bad(std::string field, std::string message) {
  return {Code::kInvalidArgument, std::move(field), std::move(message)};
}

std::string element(const std::string& list, std::size_t i) {
  return list + "[" + std::to_string(i) + "]";
}

// A copy of `dict` with one value replaced or added.
Value with(const DictData& dict, std::string_view key, Value value) {
  DictBuilder out(nullptr);
  for (const auto& [name, old] : dict.entries) out.add(name, old);
  out.add(Value::literal(std::string(key)), std::move(value));
  return out.finish(dict.untrusted);
}

// JSON text whose only fault is a backslash before a character that needs none, repaired.
std::string escape_backslashes(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (text[i] != '\\') continue;
    if (i + 1 < text.size() &&
        std::string_view("\"\\/bfnrtu").find(text[i + 1]) != std::string_view::npos)
      out += text[++i];
    else
      out += '\\';
  }
  return out;
}

// Text that is no JSON object, even repaired, is kept under "_raw" rather than refused or lost.
Result<Value> normalize_arguments(const Value& arguments, const std::string& field) {
  if (arguments.is(Kind::kDict)) return arguments;
  if (arguments.is(Kind::kNone) || (arguments.is(Kind::kString) && arguments.str().bytes.empty())) {
    return DictBuilder(nullptr).finish(true);
  }
  if (!arguments.is(Kind::kString)) {
    return bad(field, "expected an object or JSON text of one");
  }
  const auto trust =
      arguments.str().marks.empty() ? jinja::Trust::kTrusted : jinja::Trust::kUntrusted;
  const std::string& text = arguments.str().bytes;
  auto parsed = jinja::parse_json(text, field, trust);
  if (!parsed.ok()) parsed = jinja::parse_json(escape_backslashes(text), field, trust);
  if (parsed.ok() && parsed->is(Kind::kDict)) return parsed;
  DictBuilder raw(nullptr);
  raw.add(Value::literal("_raw"), arguments);
  return raw.finish(true);
}

Result<Value> normalize_call(const Value& call, const std::string& field) {
  if (!call.is(Kind::kDict)) return bad(field, "not an object");
  // Either {"function": {"name", "arguments"}} or {"name", "arguments"} itself.
  const Value* function = call.dict().find(std::string_view("function"));
  const Value& holder = function != nullptr ? *function : call;
  const std::string holder_field = function != nullptr ? field + ".function" : field;
  if (!holder.is(Kind::kDict)) return bad(holder_field, "not an object");
  const Value* arguments = holder.dict().find(std::string_view("arguments"));
  if (arguments == nullptr || arguments->is(Kind::kDict)) return call;
  ML_ASSIGN_OR_RETURN(Value parsed, normalize_arguments(*arguments, holder_field + ".arguments"));
  Value changed = with(holder.dict(), "arguments", std::move(parsed));
  if (function == nullptr) return changed;
  return with(call.dict(), "function", std::move(changed));
}

Result<Value> normalize_message(const Value& message, const std::string& field) {
  if (!message.is(Kind::kDict)) return bad(field, "not an object");
  const DictData& dict = message.dict();
  const Value* role = dict.find(std::string_view("role"));
  if (role == nullptr || !role->is(Kind::kString)) return bad(field + ".role", "not a string");
  Value result = message;
  const Value* calls = dict.find(std::string_view("tool_calls"));
  if (calls != nullptr && !calls->is(Kind::kNone)) {
    const std::string calls_field = field + ".tool_calls";
    if (!calls->is(Kind::kList)) return bad(calls_field, "not a list");
    ListBuilder out(nullptr);
    for (std::size_t i = 0; i < calls->list().items.size(); ++i) {
      ML_ASSIGN_OR_RETURN(Value call,
                          normalize_call(calls->list().items[i], element(calls_field, i)));
      out.add(std::move(call));
    }
    result = with(
        result.dict(), "tool_calls",
        calls->list().items.empty() ? Value() : out.finish(Flavor::kList, calls->list().untrusted));
  }
  const Value* reasoning = dict.find(std::string_view("reasoning"));
  const Value* content = dict.find(std::string_view("reasoning_content"));
  if (reasoning != nullptr && reasoning->is(Kind::kString) &&
      (content == nullptr || content->is(Kind::kNone))) {
    result = with(result.dict(), "reasoning_content", *reasoning);
  }
  return result;
}

Result<std::string> string_field(const Value& value, const std::string& field) {
  if (!value.is(Kind::kString)) return bad(field, "not a string");
  return value.str().bytes;
}

// Fills one field of `input` from a messages file.
Status set_field(ChatInput& input, const std::string& name, const Value& value) {
  if (name == "messages") {
    input.messages = value;
  } else if (name == "tools") {
    input.tools = value;
  } else if (name == "chat_template_kwargs") {
    input.kwargs = value;
  } else if (name == "add_generation_prompt") {
    if (!value.is(Kind::kBool)) return bad(name, "not true or false");
    input.add_generation_prompt = value.as_bool();
  } else if (name == "thinking_mode") {
    ML_ASSIGN_OR_RETURN(input.thinking_mode, string_field(value, name));
  } else if (name == "model_identity") {
    ML_ASSIGN_OR_RETURN(input.model_identity, string_field(value, name));
  } else {
    return bad(name, "unknown field");
  }
  return ok_status();
}

}  // namespace

Result<Value> normalize_messages(const Value& messages) {
  if (!messages.is(Kind::kList)) return bad("messages", "not a list");
  ListBuilder out(nullptr);
  for (std::size_t i = 0; i < messages.list().items.size(); ++i) {
    ML_ASSIGN_OR_RETURN(Value message,
                        normalize_message(messages.list().items[i], element("messages", i)));
    out.add(std::move(message));
  }
  return out.finish(Flavor::kList, messages.list().untrusted);
}

std::string thinking_of(const ChatInput& input) {
  const Value* mode =
      input.kwargs.is(Kind::kDict) ? input.kwargs.dict().find("thinking_mode") : nullptr;
  if (mode != nullptr) return mode->is(Kind::kString) ? mode->str().bytes : std::string();
  return input.thinking_mode.value_or("");
}

void set_thinking(ChatInput& input, const std::string& mode) {
  input.thinking_mode = mode;
  if (input.kwargs.is(Kind::kDict) && input.kwargs.dict().find("thinking_mode") != nullptr)
    input.kwargs = with(input.kwargs.dict(), "thinking_mode", Value::untrusted(mode));
}

Result<ChatInput> chat_input(const nlohmann::ordered_json& messages,
                             const nlohmann::ordered_json& tools) {
  ChatInput input;
  ML_ASSIGN_OR_RETURN(input.messages, jinja::from_json(messages, "messages"));
  ML_ASSIGN_OR_RETURN(input.tools, jinja::from_json(tools, "tools"));
  return input;
}

Result<ChatInput> parse_chat(std::string_view json, std::string_view subject) {
  ML_ASSIGN_OR_RETURN(const Value value, jinja::parse_json(json, subject));
  ChatInput input;
  if (value.is(Kind::kList)) {
    input.messages = value;
    return input;
  }
  if (!value.is(Kind::kDict)) {
    return bad(std::string(subject), "expected a list of messages or an object with \"messages\"");
  }
  for (const auto& [name, field] : value.dict().entries) {
    const Status status = set_field(input, name.str().bytes, field);
    if (!status.ok()) {
      return Status(status.code(), std::string(subject), status.to_string());
    }
  }
  if (!input.messages.is(Kind::kList)) return bad(std::string(subject), "messages: not a list");
  return input;
}

}  // namespace monolayer

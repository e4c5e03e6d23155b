#include "text/chat_check.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace monolayer {

namespace {

using jinja::Kind;
using jinja::Value;

Status bad(std::string path, std::string message) {
  return {Code::kInvalidArgument, std::move(path), std::move(message)};
}

std::string element(const std::string& list, std::size_t i) {
  return list + "[" + std::to_string(i) + "]";
}

std::string kind_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      return "null";
    case Kind::kDict:
      return "an object";
    case Kind::kList:
      return "a list";
    case Kind::kString:
      return "a string";
    case Kind::kBool:
      return "true or false";
    default:
      return "a number";
  }
}

// Null and absent are the same.
const Value* find(const Value& object, std::string_view name) {
  const Value* value = object.dict().find(name);
  return value == nullptr || value->is(Kind::kNone) ? nullptr : value;
}

const std::string* text_of(const Value& object, std::string_view name) {
  const Value* value = object.dict().find(name);
  return value != nullptr && value->is(Kind::kString) ? &value->str().bytes : nullptr;
}

// A client's own words in a message, cut where they are long.
std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 64;
  std::string out = "'";
  out.append(text.substr(0, kShown)).append(text.size() > kShown ? "...'" : "'");
  return out;
}

std::string shown(const Value* value) {
  if (value == nullptr) return "missing";
  return value->is(Kind::kString) ? in_quotes(value->str().bytes) : kind_of(*value);
}

Status check_text(const Value& object, std::string_view name, const std::string& path) {
  const Value* value = find(object, name);
  if (value == nullptr || value->is(Kind::kString)) return ok_status();
  return bad(path + "." + std::string(name), "must be a string, is " + kind_of(*value));
}

Status check_list(const Value& value, std::size_t most, const std::string& path) {
  if (!value.is(Kind::kList)) return bad(path, "must be a list, is " + kind_of(value));
  if (value.list().items.size() > most)
    return bad(path, "has " + std::to_string(value.list().items.size()) + " entries, at most " +
                         std::to_string(most));
  return ok_status();
}

// Text, or a list of text parts.
Status check_content(const Value& content, const std::string& path) {
  if (content.is(Kind::kString)) return ok_status();
  if (!content.is(Kind::kList))
    return bad(path, "must be a string or a list of parts, is " + kind_of(content));
  const auto& parts = content.list().items;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string at = element(path, i);
    if (parts[i].is(Kind::kString)) continue;
    if (!parts[i].is(Kind::kDict)) return bad(at, "must be an object, is " + kind_of(parts[i]));
    const std::string* type = text_of(parts[i], "type");
    if (type == nullptr || *type != "text")
      return bad(at + ".type", "is " + shown(parts[i].dict().find("type")) +
                                   ", must be 'text': the model takes nothing else");
    if (text_of(parts[i], "text") == nullptr) return bad(at + ".text", "must be a string");
  }
  return ok_status();
}

// {"type": "function", "function": {"name", "arguments"}}, or {"name", "arguments"} itself.
Status check_call(const Value& call, const std::string& path) {
  if (!call.is(Kind::kDict)) return bad(path, "must be an object, is " + kind_of(call));
  const Value* type = call.dict().find("type");
  if (type != nullptr && !(type->is(Kind::kString) && type->str().bytes == "function"))
    return bad(path + ".type", "is " + shown(type) + ", must be 'function'");
  const Value* function = call.dict().find("function");
  if (function != nullptr && !function->is(Kind::kDict))
    return bad(path + ".function", "must be an object, is " + kind_of(*function));
  const Value& holder = function != nullptr ? *function : call;
  const std::string at = path + (function != nullptr ? ".function" : "");
  const std::string* name = text_of(holder, "name");
  if (name == nullptr || name->empty())
    return bad(at + ".name", "must be a string of at least 1 byte");
  const Value* arguments = find(holder, "arguments");
  if (arguments == nullptr || arguments->is(Kind::kDict) || arguments->is(Kind::kString))
    return ok_status();
  return bad(at + ".arguments", "must be an object or JSON text of one, is " + kind_of(*arguments));
}

Status check_message(const Value& message, const std::string& path, bool& called) {
  static constexpr std::array<std::string_view, 6> kRoles{"root", "system",    "developer",
                                                          "user", "assistant", "tool"};
  if (!message.is(Kind::kDict)) return bad(path, "must be an object, is " + kind_of(message));
  const std::string* role = text_of(message, "role");
  if (role == nullptr) return bad(path + ".role", "must be a string");
  if (std::find(kRoles.begin(), kRoles.end(), *role) == kRoles.end())
    return bad(path + ".role", "is " + in_quotes(*role) +
                                   ", must be one of system, developer, user, assistant, tool");
  const Value* content = find(message, "content");
  if (content != nullptr) {
    ML_RETURN_IF_ERROR(check_content(*content, path + ".content"));
  } else if (*role != "assistant") {
    return bad(path + ".content",
               "must be a string or a list of parts, is " +
                   std::string(message.dict().find("content") == nullptr ? "missing" : "null"));
  }
  ML_RETURN_IF_ERROR(check_text(message, "reasoning_content", path));
  ML_RETURN_IF_ERROR(check_text(message, "reasoning", path));
  if (*role == "tool" && !called)
    return bad(path + ".role", "is 'tool', but no earlier message has tool_calls");
  const Value* calls = *role == "assistant" ? find(message, "tool_calls") : nullptr;
  if (calls == nullptr) return ok_status();
  const std::string at = path + ".tool_calls";
  ML_RETURN_IF_ERROR(check_list(*calls, ChatLimits::kMessages, at));
  const auto& items = calls->list().items;
  for (std::size_t i = 0; i < items.size(); ++i)
    ML_RETURN_IF_ERROR(check_call(items[i], element(at, i)));
  called = called || !items.empty();
  return ok_status();
}

Status check_tool(const Value& tool, const std::string& path, std::set<std::string>& names) {
  if (!tool.is(Kind::kDict)) return bad(path, "must be an object, is " + kind_of(tool));
  const std::string* type = text_of(tool, "type");
  if (type == nullptr || *type != "function")
    return bad(path + ".type", "is " + shown(tool.dict().find("type")) + ", must be 'function'");
  const Value* function = tool.dict().find("function");
  if (function == nullptr || !function->is(Kind::kDict))
    return bad(path + ".function", "must be an object");
  const std::string* name = text_of(*function, "name");
  if (name == nullptr || !is_tool_name(*name)) return bad(path + ".function.name", kToolNameRule);
  if (!names.insert(*name).second)
    return bad(path + ".function.name", "is '" + *name + "', which an earlier tool has");
  ML_RETURN_IF_ERROR(check_text(*function, "description", path + ".function"));
  const Value* parameters = find(*function, "parameters");
  if (parameters != nullptr && !parameters->is(Kind::kDict))
    return bad(path + ".function.parameters", "must be an object, is " + kind_of(*parameters));
  return ok_status();
}

}  // namespace

bool is_tool_name(std::string_view name) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !name.empty() && name.size() <= 128 && letter(name.front()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '-'; });
}

Status check_messages(const Value& messages) {
  ML_RETURN_IF_ERROR(check_list(messages, ChatLimits::kMessages, "messages"));
  const auto& items = messages.list().items;
  if (items.empty()) return bad("messages", "is empty");
  bool called = false;
  for (std::size_t i = 0; i < items.size(); ++i)
    ML_RETURN_IF_ERROR(check_message(items[i], element("messages", i), called));
  return ok_status();
}

Status check_tools(const Value& tools) {
  if (tools.is(Kind::kNone)) return ok_status();
  ML_RETURN_IF_ERROR(check_list(tools, ChatLimits::kTools, "tools"));
  const auto& items = tools.list().items;
  std::set<std::string> names;
  for (std::size_t i = 0; i < items.size(); ++i)
    ML_RETURN_IF_ERROR(check_tool(items[i], element("tools", i), names));
  return ok_status();
}

Status check_thinking_mode(std::string_view mode, const std::string& path) {
  if (mode == "enabled" || mode == "disabled" || mode == "adaptive") return ok_status();
  return bad(path, "is " + in_quotes(mode) + ", must be enabled, disabled or adaptive");
}

Status check_kwargs(const Value& kwargs) {
  const std::string path = "chat_template_kwargs";
  if (kwargs.is(Kind::kNone)) return ok_status();
  if (!kwargs.is(Kind::kDict)) return bad(path, "must be an object, is " + kind_of(kwargs));
  const Value* mode = kwargs.dict().find("thinking_mode");
  if (mode == nullptr) return ok_status();
  if (!mode->is(Kind::kString)) return bad(path + ".thinking_mode", "must be a string");
  return check_thinking_mode(mode->str().bytes, path + ".thinking_mode");
}

Status check_chat(const ChatInput& input) {
  ML_RETURN_IF_ERROR(check_messages(input.messages));
  ML_RETURN_IF_ERROR(check_tools(input.tools));
  if (input.thinking_mode)
    ML_RETURN_IF_ERROR(check_thinking_mode(*input.thinking_mode, "thinking_mode"));
  return check_kwargs(input.kwargs);
}

int json_nesting(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

Result<ChatInput> read_chat(std::string_view json, std::string_view subject) {
  if (const int depth = json_nesting(json); depth > ChatLimits::kNesting)
    return Status(Code::kInvalidArgument, std::string(subject),
                  "is nested " + std::to_string(depth) + " levels deep, at most " +
                      std::to_string(ChatLimits::kNesting));
  ML_ASSIGN_OR_RETURN(ChatInput input, parse_chat(json, subject));
  const Status status = check_chat(input);
  if (!status.ok()) return Status(status.code(), std::string(subject), status.to_string());
  return input;
}

}  // namespace monolayer

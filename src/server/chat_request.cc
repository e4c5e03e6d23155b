// Bodies of /v1/chat/completions, and chats to prompts.
#include <algorithm>
#include <set>

#include "server/generation_spec.h"
#include "text/jinja/json.h"

namespace monolayer::server {
namespace {

std::string element(const std::string& list, std::size_t i) {
  return list + "[" + std::to_string(i) + "]";
}

// Text, or a list of text parts.
std::optional<ApiError> check_content(const Json& content, const std::string& path) {
  if (content.is_null() || content.is_string()) return std::nullopt;
  if (!content.is_array())
    return bad_field(path, "must be a string or a list of parts, is " + kind_of(content));
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string at = element(path, i);
    if (part.is_string()) continue;
    if (!part.is_object()) return bad_field(at, "must be an object, is " + kind_of(part));
    const std::string type = part.value("type", Json("")).is_string()
                                 ? part.value("type", std::string())
                                 : std::string();
    if (type != "text")
      return bad_field(at + ".type", "is '" + type + "'; this server takes text only");
    if (!part.contains("text") || !part.at("text").is_string())
      return bad_field(at + ".text", "must be a string");
  }
  return std::nullopt;
}

// Arguments that are no JSON object are kept, as text, rather than refused or lost.
void repair_arguments(Json& call) {
  Json& holder =
      call.contains("function") && call["function"].is_object() ? call["function"] : call;
  if (!holder.contains("arguments") || !holder["arguments"].is_string()) return;
  const std::string text = holder["arguments"].get<std::string>();
  const Json parsed = text.empty() ? Json::object() : Json::parse(text, nullptr, false);
  holder["arguments"] = parsed.is_object() ? parsed : Json{{"_raw", text}};
}

std::optional<ApiError> check_calls(Json& message, const std::string& path) {
  Json& calls = message["tool_calls"];
  if (calls.is_null()) return std::nullopt;
  if (!calls.is_array()) return bad_field(path, "must be a list, is " + kind_of(calls));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string at = element(path, i);
    if (!calls[i].is_object()) return bad_field(at, "must be an object, is " + kind_of(calls[i]));
    const std::string type = calls[i].value("type", Json("function")).is_string()
                                 ? calls[i].value("type", std::string("function"))
                                 : std::string();
    if (type != "function") return bad_field(at + ".type", "is '" + type + "', must be function");
    const Json function = calls[i].value("function", Json(calls[i]));
    if (!function.is_object() || !function.contains("name") || !function.at("name").is_string())
      return bad_field(at + ".function.name", "must be a string");
    repair_arguments(calls[i]);
  }
  if (calls.empty()) message.erase("tool_calls");
  return std::nullopt;
}

std::optional<ApiError> check_messages(Json& messages) {
  static const std::set<std::string> roles = {"system",    "developer", "user",
                                              "assistant", "tool",      "root"};
  bool called = false;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string path = element("messages", i);
    Json& message = messages[i];
    if (!message.is_object()) return bad_field(path, "must be an object, is " + kind_of(message));
    if (!message.contains("role") || !message["role"].is_string())
      return bad_field(path + ".role", "must be a string");
    const std::string role = message["role"].get<std::string>();
    if (roles.count(role) == 0)
      return bad_field(path + ".role", "is '" + role +
                                           "', must be one of system, developer, user, assistant, "
                                           "tool");
    if (!message.contains("content")) message["content"] = nullptr;
    if (auto error = check_content(message["content"], path + ".content")) return error;
    if (message["content"].is_null() && role != "assistant")
      return bad_field(path + ".content", "must be a string or a list of parts, is null");
    if (role == "assistant" && message.contains("tool_calls")) {
      if (auto error = check_calls(message, path + ".tool_calls")) return error;
      called = called || message.contains("tool_calls");
    }
    if (role == "tool" && !called)
      return bad_field(path + ".role", "is 'tool', but no earlier message has tool_calls");
  }
  return std::nullopt;
}

bool is_name(const std::string& name) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !name.empty() && name.size() <= 128 && letter(name.front()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '-'; });
}

std::optional<ApiError> check_tools(const Json& tools) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string path = element("tools", i);
    if (!tools[i].is_object()) return bad_field(path, "must be an object, is " + kind_of(tools[i]));
    const std::string type = tools[i].value("type", Json("")).is_string()
                                 ? tools[i].value("type", std::string())
                                 : std::string();
    if (type != "function") return bad_field(path + ".type", "is '" + type + "', must be function");
    if (!tools[i].contains("function") || !tools[i].at("function").is_object())
      return bad_field(path + ".function", "must be an object");
    const Json& function = tools[i].at("function");
    if (!function.contains("name") || !function.at("name").is_string() ||
        !is_name(function.at("name").get<std::string>()))
      return bad_field(path + ".function.name",
                       "must be a string of letters, digits, _ and -, beginning with a letter or "
                       "_, of at most 128");
    if (!names.insert(function.at("name").get<std::string>()).second)
      return bad_field(path + ".function.name", "is '" + function.at("name").get<std::string>() +
                                                    "', which an earlier tool has");
    if (function.contains("parameters") && !function.at("parameters").is_object() &&
        !function.at("parameters").is_null())
      return bad_field(path + ".function.parameters", "must be an object");
  }
  return std::nullopt;
}

std::optional<ApiError> read_tool_choice(Fields& fields, ChatParts& parts) {
  const bool any = parts.tools.is_array() && !parts.tools.empty();
  if (!fields.has("tool_choice")) {
    parts.tool_choice = any ? "auto" : "none";
    return std::nullopt;
  }
  const Json& choice = fields.at("tool_choice");
  if (choice.is_string()) {
    parts.tool_choice = fields.one_of("tool_choice", "auto", {"none", "auto", "required"});
    if (!fields.ok()) return fields.error();
  } else {
    if (!choice.is_object() || !choice.contains("function") || !choice.at("function").is_object() ||
        !choice.at("function").contains("name") || !choice.at("function").at("name").is_string())
      return bad_field("tool_choice.function.name", "must be a string");
    parts.tool_choice = "named";
    parts.forced_tool = choice.at("function").at("name").get<std::string>();
    bool known = false;
    for (std::size_t i = 0; any && i < parts.tools.size(); ++i)
      known = known || parts.tools[i].at("function").at("name") == parts.forced_tool;
    if (!known)
      return bad_field("tool_choice.function.name",
                       "is '" + parts.forced_tool + "', which is not among tools");
  }
  if (!any && parts.tool_choice != "none" && parts.tool_choice != "auto")
    return bad_field("tool_choice", "needs tools");
  if (!any) parts.tool_choice = "none";
  return std::nullopt;
}

// thinking_mode from the request's own words, the nearest to the template first.
void read_thinking(Fields& fields, const ServedModel& model, ChatParts& parts) {
  parts.kwargs = model.chat_defaults;
  if (fields.has("reasoning_effort")) {
    const std::string effort = fields.one_of("reasoning_effort", "",
                                             {"none", "minimal", "low", "medium", "high", "xhigh"});
    parts.kwargs["reasoning_effort"] = effort;
    if (effort == "none") parts.kwargs["thinking_mode"] = "disabled";
  }
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking");
    const std::string type = inner.one_of("type", "adaptive", {"enabled", "disabled", "adaptive"});
    if (inner.ok()) {
      parts.kwargs["thinking_mode"] = type;
    } else {
      fields.fail(inner.error()->param, "must be one of enabled, disabled, adaptive");
    }
  }
  if (const Json* kwargs = fields.object("chat_template_kwargs"))
    for (const auto& [key, value] : kwargs->items()) parts.kwargs[key] = value;
}

}  // namespace

std::optional<ApiError> render_chat(ChatParts parts, const ServedModel& model,
                                    GenerationSpec& spec) {
  if (!model.chat) return bad_field("messages", "cannot be rendered: " + model.chat_missing);
  if (parts.messages.empty()) return bad_field("messages", "is empty");
  if (auto error = check_messages(parts.messages)) return error;
  const bool any_tools = parts.tools.is_array() && !parts.tools.empty();
  spec.tools = any_tools && parts.tool_choice != "none";
  if (any_tools) spec.schemas = ToolSchemas::from(parts.tools);
  std::string mode;
  if (parts.kwargs.contains("thinking_mode")) {
    if (!parts.kwargs["thinking_mode"].is_string())
      return bad_field("chat_template_kwargs.thinking_mode", "must be a string");
    mode = parts.kwargs["thinking_mode"].get<std::string>();
    if (mode != "enabled" && mode != "disabled" && mode != "adaptive")
      return bad_field("chat_template_kwargs.thinking_mode",
                       "is '" + mode + "', must be enabled, disabled or adaptive");
  }
  spec.thinking = thinking_mode(mode);

  // With tool_choice none the model is not told of the tools.
  auto input = chat_input(parts.messages, spec.tools ? parts.tools : Json());
  if (!input.ok()) return bad_field(input.status().subject(), input.status().message());
  input->add_generation_prompt = parts.add_generation_prompt && !parts.continue_final;
  auto kwargs = jinja::from_json(parts.kwargs, "chat_template_kwargs");
  if (!kwargs.ok()) return bad_field(kwargs.status().subject(), kwargs.status().message());
  input->kwargs = *std::move(kwargs);
  auto prompt = model.chat->render_prompt(*input);
  if (!prompt.ok()) {
    const Status status = prompt.status();
    return bad_field("messages", "cannot be rendered: " + status.to_string());
  }
  if (parts.continue_final) {
    // The last turn stays open: what closes it is cut off again.
    const std::string end = "[e~[";
    const std::size_t at = prompt->text.rfind(end);
    if (at != std::string::npos) prompt->text.resize(at);
    std::erase_if(prompt->literal,
                  [&](const TextSpan& span) { return span.end > prompt->text.size(); });
    spec.thinking = ThinkingMode::kDisabled;
  }
  if (parts.tool_choice == "required" || parts.tool_choice == "named") {
    const std::string mark(kToolMark);
    spec.forced = mark + "<tool_call>\n" + mark + "<invoke name=\"";
    if (!parts.forced_tool.empty()) spec.forced += parts.forced_tool + "\">";
    // A forced call leaves no room for reasoning: it is closed at once.
    if (spec.thinking != ThinkingMode::kDisabled) prompt->text += "</mm:think>";
    spec.thinking = ThinkingMode::kDisabled;
    prompt->text += spec.forced;
  }
  if (!input->add_generation_prompt) spec.thinking = ThinkingMode::kDisabled;
  EncodeOptions options;
  options.allow_special = true;
  options.literal = prompt->literal;
  auto ids = model.tokenizer.encode(prompt->text, options);
  if (!ids.ok()) return bad_field("messages", ids.status().to_string());
  spec.prompts.push_back(*std::move(ids));
  return std::nullopt;
}

ApiResult<GenerationSpec> parse_chat_request(const Json& body, const ServedModel& model,
                                             const Limits& limits) {
  GenerationSpec spec;
  spec.dialect = Dialect::kChat;
  Fields fields(body);
  if (auto error = check_model(fields, model)) return *error;
  const bool newer = fields.has("max_completion_tokens");
  const char* max_name = newer ? "max_completion_tokens" : "max_tokens";
  parse_sampling(fields, spec, model, limits, max_name, model.max_model_len);
  if (fields.has(max_name) && spec.base.max_tokens < 1)
    fields.fail(max_name, "is " + std::to_string(spec.base.max_tokens) + ", must be at least 1");
  spec.logprobs = fields.boolean("logprobs", false);
  const std::int64_t top = fields.integer("top_logprobs", 0, 0, limits.top_logprobs);
  if (top > 0 && !spec.logprobs) fields.fail("top_logprobs", "needs logprobs to be true");
  if (spec.logprobs) spec.base.logprobs = top;
  if (const Json* format = fields.object("response_format")) {
    Fields inner(*format, "response_format");
    inner.one_of("type", "text", {"text", "json_object", "json_schema"});
    if (!inner.ok()) return *inner.error();
  }
  ChatParts parts;
  const Json* messages = fields.list("messages", limits.messages);
  if (fields.ok() && messages == nullptr) return bad_field("messages", "is missing");
  if (messages != nullptr) parts.messages = *messages;
  if (const Json* tools = fields.list("tools", limits.tools)) {
    parts.tools = *tools;
    if (auto error = check_tools(parts.tools)) return *error;
  }
  spec.only_first_call = !fields.boolean("parallel_tool_calls", true);
  parts.add_generation_prompt = fields.boolean("add_generation_prompt", true);
  parts.continue_final = fields.boolean("continue_final_message", false);
  read_thinking(fields, model, parts);
  if (!fields.ok()) return *fields.error();
  if (auto error = read_tool_choice(fields, parts)) return *error;
  if (auto error = render_chat(std::move(parts), model, spec)) return *error;
  if (auto error = check_lengths(spec, model, fields.has(max_name))) return *error;
  return spec;
}

}  // namespace monolayer::server

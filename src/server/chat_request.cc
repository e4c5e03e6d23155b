// Bodies of /v1/chat/completions, and chats to prompts.
#include "server/generation_spec.h"
#include "text/chat_check.h"
#include "text/jinja/json.h"

namespace monolayer::server {
namespace {

// What is wrong with a chat's field, as the answer to the request.
std::optional<ApiError> refusal(const Status& status) {
  if (status.ok()) return std::nullopt;
  return bad_field(status.subject(), status.message());
}

// Tools that later code may take as they ought to be.
std::optional<ApiError> read_tools(const Json& tools, ChatParts& parts) {
  const auto values = jinja::from_json(tools, "tools");
  if (auto error = refusal(values.ok() ? check_tools(*values) : values.status())) return error;
  parts.tools = tools;
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

std::optional<ApiError> render_chat(const ChatParts& parts, const ServedModel& model,
                                    GenerationSpec& spec) {
  if (!model.chat) return bad_field("messages", "cannot be rendered: " + model.chat_missing);
  const bool any_tools = parts.tools.is_array() && !parts.tools.empty();
  spec.tools = any_tools && parts.tool_choice != "none";
  if (any_tools) spec.schemas = ToolSchemas::from(parts.tools);
  // With tool_choice none the model is not told of the tools.
  auto input = chat_input(parts.messages, spec.tools ? parts.tools : Json());
  if (!input.ok()) return refusal(input.status());
  input->add_generation_prompt = parts.add_generation_prompt && !parts.continue_final;
  auto kwargs = jinja::from_json(parts.kwargs, "chat_template_kwargs");
  if (!kwargs.ok()) return refusal(kwargs.status());
  input->kwargs = *std::move(kwargs);
  if (auto error = refusal(check_messages(input->messages))) return error;
  if (auto error = refusal(check_kwargs(input->kwargs))) return error;
  spec.thinking = thinking_mode(thinking_of(*input));
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
    if (auto error = read_tools(*tools, parts)) return *error;
  }
  spec.only_first_call = !fields.boolean("parallel_tool_calls", true);
  parts.add_generation_prompt = fields.boolean("add_generation_prompt", true);
  parts.continue_final = fields.boolean("continue_final_message", false);
  read_thinking(fields, model, parts);
  if (!fields.ok()) return *fields.error();
  if (auto error = read_tool_choice(fields, parts)) return *error;
  if (auto error = render_chat(parts, model, spec)) return *error;
  if (auto error = check_lengths(spec, model, fields.has(max_name))) return *error;
  return spec;
}

}  // namespace monolayer::server

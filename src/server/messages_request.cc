#include "server/messages_request.h"

#include <set>

#include "text/chat_check.h"

namespace monolayer::server {
namespace {

std::string element(const std::string& list, std::size_t i) {
  return list + "[" + std::to_string(i) + "]";
}

std::string text_or(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// A string, or a list of text blocks, as one string.
std::optional<ApiError> plain_text(const Json& content, const std::string& path,
                                   std::string& text) {
  if (content.is_null()) return std::nullopt;
  if (content.is_string()) {
    text += content.get<std::string>();
    return std::nullopt;
  }
  if (!content.is_array())
    return bad_field(path, "must be a string or a list of blocks, is " + kind_of(content));
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = element(path, i);
    if (!content[i].is_object()) return bad_field(at, "must be an object");
    const std::string type = text_or(content[i], "type");
    if (type != "text")
      return bad_field(at + ".type", "is '" + type + "'; this server takes text only");
    if (!content[i].contains("text") || !content[i].at("text").is_string())
      return bad_field(at + ".text", "must be a string");
    text += content[i].at("text").get<std::string>();
  }
  return std::nullopt;
}

// One message becomes tool results, each of its own, and what is left.
std::optional<ApiError> add_message(const Json& message, const std::string& path, Json& out) {
  if (!message.is_object()) return bad_field(path, "must be an object, is " + kind_of(message));
  const std::string role = text_or(message, "role");
  if (role != "user" && role != "assistant" && role != "system")
    return bad_field(path + ".role", "is '" + role + "', must be one of user, assistant");
  if (!message.contains("content")) return bad_field(path + ".content", "is missing");
  const Json& content = message.at("content");
  if (!content.is_array()) {
    std::string text;
    if (auto error = plain_text(content, path + ".content", text)) return error;
    out.push_back({{"role", role}, {"content", text}});
    return std::nullopt;
  }
  std::string text, reasoning;
  Json calls = Json::array();
  bool results = false;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = element(path + ".content", i);
    const Json& block = content[i];
    if (!block.is_object()) return bad_field(at, "must be an object, is " + kind_of(block));
    const std::string type = text_or(block, "type");
    if (type == "text") {
      if (!block.contains("text") || !block.at("text").is_string())
        return bad_field(at + ".text", "must be a string");
      text += block.at("text").get<std::string>();
    } else if (type == "thinking") {
      reasoning += text_or(block, "thinking");
    } else if (type == "redacted_thinking") {
      continue;
    } else if (type == "tool_use" && role == "assistant") {
      if (text_or(block, "name").empty()) return bad_field(at + ".name", "must be a string");
      const Json input = block.value("input", Json::object());
      if (!input.is_object()) return bad_field(at + ".input", "must be an object");
      calls.push_back({{"id", text_or(block, "id")},
                       {"type", "function"},
                       {"function", {{"name", text_or(block, "name")}, {"arguments", input}}}});
    } else if (type == "tool_result" && role == "user") {
      std::string result;
      if (block.contains("content"))
        if (auto error = plain_text(block.at("content"), at + ".content", result)) return error;
      out.push_back(
          {{"role", "tool"}, {"tool_call_id", text_or(block, "tool_use_id")}, {"content", result}});
      results = true;
    } else {
      std::string what = "is '";
      what.append(type).append("', which a ").append(role);
      return bad_field(at + ".type", what + " message of this server cannot hold");
    }
  }
  if (results && text.empty()) return std::nullopt;
  Json made = {{"role", role}, {"content", text}};
  if (!reasoning.empty()) made["reasoning_content"] = reasoning;
  if (!calls.empty()) made["tool_calls"] = calls;
  out.push_back(std::move(made));
  return std::nullopt;
}

std::optional<ApiError> add_tools(const Json& tools, ChatParts& parts) {
  parts.tools = Json::array();
  std::set<std::string> names;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string at = element("tools", i);
    if (!tools[i].is_object()) return bad_field(at, "must be an object");
    const std::string type = text_or(tools[i], "type");
    if (!type.empty() && type != "custom")
      return bad_field(at + ".type", "is '" + type + "'; this server runs no tools itself");
    const std::string name = text_or(tools[i], "name");
    if (!is_tool_name(name)) return bad_field(at + ".name", kToolNameRule);
    if (!names.insert(name).second)
      return bad_field(at + ".name", "is '" + name + "', which an earlier tool has");
    Json function = {{"name", name}};
    if (tools[i].contains("description")) function["description"] = tools[i].at("description");
    const Json schema = tools[i].value("input_schema", Json::object());
    if (!schema.is_object()) return bad_field(at + ".input_schema", "must be an object");
    function["parameters"] = schema;
    parts.tools.push_back({{"type", "function"}, {"function", function}});
  }
  return std::nullopt;
}

std::optional<ApiError> read_choice(Fields& fields, ChatParts& parts, GenerationSpec& spec) {
  const bool any = parts.tools.is_array() && !parts.tools.empty();
  parts.tool_choice = any ? "auto" : "none";
  const Json* choice = fields.object("tool_choice");
  if (choice == nullptr) return fields.error();
  Fields inner(*choice, "tool_choice");
  const std::string type = inner.one_of("type", "auto", {"auto", "any", "tool", "none"});
  spec.only_first_call = inner.boolean("disable_parallel_tool_use", false);
  const std::string name = inner.text("name");
  if (!inner.ok()) return inner.error();
  if (!any && (type == "any" || type == "tool")) return bad_field("tool_choice", "needs tools");
  if (!any) return std::nullopt;
  parts.tool_choice = type == "any" ? "required" : type == "tool" ? "named" : type;
  if (type != "tool") return std::nullopt;
  for (const Json& tool : parts.tools)
    if (tool.at("function").at("name") == name) parts.forced_tool = name;
  if (parts.forced_tool.empty())
    return bad_field("tool_choice.name", "is '" + name + "', which is not among tools");
  return std::nullopt;
}

}  // namespace

ApiResult<GenerationSpec> parse_messages_request(const Json& body, const ServedModel& model,
                                                 const Limits& limits, bool generate) {
  GenerationSpec spec;
  spec.dialect = Dialect::kMessages;
  Fields fields(body);
  if (auto error = check_model(fields, model)) return *error;
  if (generate && !fields.has("max_tokens")) return bad_field("max_tokens", "is missing");
  parse_sampling(fields, spec, model, limits, "max_tokens", 1);
  if (spec.base.max_tokens < 1) fields.fail("max_tokens", "must be at least 1");
  if (fields.has("n") && spec.n != 1) fields.fail("n", "must be 1");
  if (const Json* stops = fields.list("stop_sequences", limits.stops)) {
    for (std::size_t i = 0; i < stops->size(); ++i) {
      const std::string at = element("stop_sequences", i);
      if (!(*stops)[i].is_string() || (*stops)[i].get<std::string>().empty())
        return bad_field(at, "must be a string of at least 1 byte");
      if ((*stops)[i].get<std::string>().size() > limits.stop_bytes)
        return bad_field(at, "has more than " + std::to_string(limits.stop_bytes) + " bytes");
      spec.base.text.stops.push_back((*stops)[i].get<std::string>());
    }
  }
  ChatParts parts;
  parts.kwargs = model.chat_defaults;
  const Json* messages = fields.list("messages", limits.messages);
  if (fields.ok() && messages == nullptr) return bad_field("messages", "is missing");
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking");
    parts.kwargs["thinking_mode"] =
        inner.one_of("type", "disabled", {"enabled", "disabled", "adaptive"});
    if (!inner.ok()) return *inner.error();
  }
  if (fields.has("system")) {
    std::string system;
    if (auto error = plain_text(fields.at("system"), "system", system)) return *error;
    parts.messages.push_back({{"role", "system"}, {"content", system}});
  }
  for (std::size_t i = 0; messages != nullptr && i < messages->size(); ++i)
    if (auto error = add_message((*messages)[i], element("messages", i), parts.messages))
      return *error;
  if (const Json* tools = fields.list("tools", limits.tools))
    if (auto error = add_tools(*tools, parts)) return *error;
  if (!fields.ok()) return *fields.error();
  if (auto error = read_choice(fields, parts, spec)) return *error;
  if (auto error = render_chat(parts, model, spec)) return *error;
  if (!generate) return spec;
  if (auto error = check_lengths(spec, model, true)) return *error;
  return spec;
}

}  // namespace monolayer::server

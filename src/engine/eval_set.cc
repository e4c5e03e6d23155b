#include "engine/eval_set.h"

#include <map>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/text_io.h"
#include "text/chat_check.h"

namespace monolayer::engine {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;

Result<std::string> text_field(const Json& line, const char* key, const std::string& at) {
  const auto value = line.find(key);
  if (value == line.end() || !value->is_string())
    return Status(Code::kInvalidFile, at, std::string("needs the text '") + key + "'");
  return value->get<std::string>();
}

Status check_keys(const Json& line, const std::string& at) {
  if (!line.is_object()) return {Code::kInvalidFile, at, "must be a JSON object"};
  for (const auto& [key, value] : line.items()) {
    bool known = false;
    for (const char* name :
         {"task", "messages", "tools", "thinking", "answer", "max_tokens", "text"})
      known = known || key == name;
    if (!known) return {Code::kInvalidFile, at, "has the unknown key " + quote_name(key)};
  }
  return ok_status();
}

// The key order of tools and their parameters is part of the prompt.
Result<PromptRequest> question(const nlohmann::ordered_json& line, const std::string& at) {
  PromptRequest request;
  request.subject = at;
  nlohmann::ordered_json chat = {{"messages", line.value("messages", nlohmann::ordered_json())}};
  if (line.contains("tools")) chat["tools"] = line["tools"];
  ML_ASSIGN_OR_RETURN(request.chat, read_chat(chat.dump(), at));
  if (line.contains("thinking")) {
    if (!line["thinking"].is_string())
      return Status(Code::kInvalidFile, at, "thinking: must be a string");
    request.thinking = line["thinking"].get<std::string>();
    const Status known = check_thinking_mode(*request.thinking, "thinking");
    if (!known.ok()) return Status(Code::kInvalidFile, at, known.to_string());
  }
  return request;
}

Result<EvalItem> read_line(std::string_view text, const std::string& at, const TextModel& model,
                           const m3::ModelConfig& config) {
  ML_ASSIGN_OR_RETURN(const Json line, parse_json(text, at));
  ML_RETURN_IF_ERROR(check_keys(line, at));
  EvalItem item;
  ML_ASSIGN_OR_RETURN(item.task, text_field(line, "task", at));
  PromptRequest request;
  if (line.contains("text")) {
    item.predict = true;
    request.subject = at;
    request.raw = true;
    request.allow_special = true;
    ML_ASSIGN_OR_RETURN(request.text, text_field(line, "text", at));
  } else {
    ML_ASSIGN_OR_RETURN(item.answer, text_field(line, "answer", at));
    const auto most = line.find("max_tokens");
    if (most == line.end() || !most->is_number_integer() || most->get<std::int64_t>() < 1 ||
        most->get<std::int64_t>() > kMostTokens)
      return Status(Code::kInvalidFile, at,
                    "max_tokens must be a whole number from 1 to " + std::to_string(kMostTokens));
    item.max_tokens = most->get<std::int64_t>();
    // The second reading keeps the key order; the first one refused whatever could throw here.
    ML_ASSIGN_OR_RETURN(request, question(nlohmann::ordered_json::parse(text), at));
  }
  ML_ASSIGN_OR_RETURN(item.prompt, model.build(request, config.vocab_size));
  if (item.predict && item.prompt.ids.size() < 2)
    return Status(Code::kInvalidFile, at, "text has no second token to predict");
  const auto tokens = static_cast<std::int64_t>(item.prompt.ids.size());
  if (tokens + item.max_tokens > config.max_positions)
    return Status(Code::kInvalidFile, at,
                  std::to_string(tokens) + " prompt tokens and max_tokens " +
                      std::to_string(item.max_tokens) + " are more than the model's " +
                      std::to_string(config.max_positions) + " positions");
  return item;
}

}  // namespace

Result<std::vector<EvalItem>> read_eval_set(const std::string& path, const TextModel& text,
                                            const m3::ModelConfig& config, std::int64_t limit) {
  ML_ASSIGN_OR_RETURN(const std::string file, read_text_file(path, std::size_t{256} << 20));
  std::vector<EvalItem> items;
  std::map<std::string, std::int64_t> taken;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < file.size();) {
    std::size_t end = file.find('\n', begin);
    if (end == std::string::npos) end = file.size();
    const std::string at = path + ":" + std::to_string(++number);
    ML_ASSIGN_OR_RETURN(EvalItem item, read_line(std::string_view(file).substr(begin, end - begin),
                                                 at, text, config));
    item.line = number;
    begin = end + 1;
    if (limit > 0 && taken[item.task] >= limit) continue;
    ++taken[item.task];
    items.push_back(std::move(item));
  }
  if (items.empty()) return Status(Code::kInvalidFile, path, "holds no line");
  return items;
}

}  // namespace monolayer::engine

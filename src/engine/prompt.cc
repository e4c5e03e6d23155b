#include "engine/prompt.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "checkpoint/text_io.h"
#include "text/jinja/value.h"

namespace monolayer::engine {

namespace {

// Parts of a content list that are not text: what the first one is, or empty.
std::string odd_part(const jinja::Value& content) {
  const auto& parts = content.list().items;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string at = "content[" + std::to_string(i) + "]";
    if (parts[i].is(jinja::Kind::kString)) continue;
    if (!parts[i].is(jinja::Kind::kDict)) return at + " must be an object";
    const auto* type = parts[i].dict().find(std::string_view("type"));
    if (type == nullptr || !type->is(jinja::Kind::kString) || type->str().bytes != "text")
      return at + ".type must be text: the model takes nothing else";
    const auto* text = parts[i].dict().find(std::string_view("text"));
    if (text == nullptr || !text->is(jinja::Kind::kString)) return at + ".text must be a string";
  }
  return {};
}

// A template passes over roles and contents that it does not know; the answer would be to another
// question than the one in the file.
Status check_messages(const ChatInput& input, const std::string& subject) {
  static constexpr std::array<std::string_view, 6> kRoles{"root", "system",    "developer",
                                                          "user", "assistant", "tool"};
  if (!input.messages.is(jinja::Kind::kList))
    return {Code::kInvalidArgument, subject, "messages is not a list"};
  const auto& messages = input.messages.list().items;
  if (messages.empty()) return {Code::kInvalidArgument, subject, "messages is empty"};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string at = "messages[" + std::to_string(i) + "]";
    if (!messages[i].is(jinja::Kind::kDict))
      return {Code::kInvalidArgument, subject, at + " is not an object"};
    const auto& message = messages[i].dict();
    const auto* given = message.find(std::string_view("role"));
    if (given == nullptr || !given->is(jinja::Kind::kString))
      return {Code::kInvalidArgument, subject, at + ".role is not a string"};
    const std::string& role = given->str().bytes;
    if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end())
      return {Code::kInvalidArgument, subject,
              at + ".role is " + quote_name(role) +
                  ", must be one of system, developer, user, assistant, tool"};
    const auto* content = message.find(std::string_view("content"));
    const bool absent = content == nullptr || content->is(jinja::Kind::kNone);
    if (absent ? role != "assistant"
               : !content->is(jinja::Kind::kString) && !content->is(jinja::Kind::kList))
      return {Code::kInvalidArgument, subject, at + ".content must be a string or a list of parts"};
    if (absent || !content->is(jinja::Kind::kList)) continue;
    if (const std::string odd = odd_part(*content); !odd.empty())
      return {Code::kInvalidArgument, subject, at + "." + odd};
  }
  return ok_status();
}

}  // namespace

Result<TextModel> TextModel::load(const std::string& folder) {
  ML_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(folder));
  return TextModel(std::move(tokenizer), folder);
}

// The prompt text, and where in it the request's own words are: control tokens written there stay
// text.
Status TextModel::render(const PromptRequest& request, Prompt& prompt,
                         std::vector<TextSpan>& literal) const {
  ML_ASSIGN_OR_RETURN(const ChatTemplate chat_template, ChatTemplate::load(folder_));
  ChatInput input;
  if (request.chat) {
    input = *request.chat;
    ML_RETURN_IF_ERROR(check_messages(input, request.subject));
  } else {
    const nlohmann::ordered_json message = {{"role", "user"}, {"content", request.text}};
    ML_ASSIGN_OR_RETURN(input, chat_input(nlohmann::ordered_json::array({message}), nullptr));
  }
  if (request.thinking) input.thinking_mode = request.thinking;
  prompt.thinking = thinking_mode(input.thinking_mode.value_or(""));
  ML_ASSIGN_OR_RETURN(const std::vector<TextSegment> segments,
                      chat_template.render_segments(input));
  for (const TextSegment& segment : segments) {
    const std::size_t begin = prompt.text.size();
    prompt.text += segment.text;
    if (!segment.trusted) literal.push_back({begin, prompt.text.size()});
  }
  return ok_status();
}

Result<Prompt> TextModel::build(const PromptRequest& request, std::int64_t vocab_size) const {
  Prompt prompt;
  EncodeOptions options;
  std::vector<TextSpan> literal;
  if (request.raw) {
    prompt.text = request.text;
    options.allow_special = request.allow_special;
  } else {
    ML_RETURN_IF_ERROR(render(request, prompt, literal));
    options.allow_special = true;
    options.literal = literal;
  }
  ML_ASSIGN_OR_RETURN(prompt.ids, tokenizer_.encode(prompt.text, options));
  if (prompt.ids.empty())
    return Status(Code::kInvalidArgument, request.subject, "is empty: it holds no token");
  for (const std::int32_t id : prompt.ids)
    if (id < 0 || id >= vocab_size)
      return Status(Code::kInvalidFile, folder_ + "/tokenizer.json",
                    "gives token " + std::to_string(id) + ", the model has rows for ids below " +
                        std::to_string(vocab_size));
  return prompt;
}

}  // namespace monolayer::engine

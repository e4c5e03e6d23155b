#include "engine/prompt.h"

#include <string>

#include <nlohmann/json.hpp>

namespace monolayer::engine {

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
  } else {
    const nlohmann::ordered_json message = {{"role", "user"}, {"content", request.text}};
    auto made = chat_input(nlohmann::ordered_json::array({message}), nullptr);
    if (!made.ok()) return {made.status().code(), request.subject, made.status().message()};
    input = *std::move(made);
  }
  if (request.thinking) set_thinking(input, *request.thinking);
  prompt.thinking = thinking_mode(thinking_of(input));
  const auto segments = chat_template.render_segments(input);
  if (!segments.ok())
    return {segments.status().code(), request.subject, segments.status().to_string()};
  for (const TextSegment& segment : *segments) {
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
  if (prompt.ids.empty() && !request.raw)
    return Status(Code::kInvalidFile, folder_, "its chat template makes nothing of a chat");
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

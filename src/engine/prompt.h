// From text or chat messages to the token ids a model is given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "text/chat.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"

namespace monolayer::engine {

struct PromptRequest {
  std::string subject = "prompt";  // named in errors
  std::string text;                // one user message, or with `raw` the text to go on with
  bool raw = false;
  bool allow_special = false;           // raw only: control tokens written in the text are tokens
  std::optional<ChatInput> chat;        // instead of `text`; checked (read_chat)
  std::optional<std::string> thinking;  // enabled, disabled, adaptive; else the template's default
};

struct Prompt {
  std::vector<std::int32_t> ids;
  std::string text;  // what was encoded
  // How the reply begins: inside reasoning, outside, or as its first mark says.
  ThinkingMode thinking = ThinkingMode::kAdaptive;
};

class TextModel {
 public:
  // The tokenizer of a model folder. Its chat template is read when a chat needs it.
  static Result<TextModel> load(const std::string& folder);

  // kInvalidArgument naming the request's subject for an empty prompt; kInvalidFile for an id the
  // model has no row for; errors of the template, which a folder without one gives too.
  Result<Prompt> build(const PromptRequest& request, std::int64_t vocab_size) const;
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  TextModel(Tokenizer tokenizer, std::string folder)
      : tokenizer_(std::move(tokenizer)), folder_(std::move(folder)) {}
  Status render(const PromptRequest& request, Prompt& prompt, std::vector<TextSpan>& literal) const;

  Tokenizer tokenizer_;
  std::string folder_;
};

}  // namespace monolayer::engine

// A request body, checked and ready for the engine: what all dialects come down to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/model_loader.h"
#include "engine/request.h"
#include "server/api_error.h"
#include "server/fields.h"
#include "server/tool_parser.h"
#include "text/chat.h"
#include "text/chat_check.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"

namespace monolayer::server {

// What a client may send; every bound is named in the refusal.
struct Limits {
  std::size_t body_bytes = std::size_t{64} << 20;
  std::size_t header_bytes = std::size_t{32} << 10;
  int nesting = ChatLimits::kNesting;
  std::int64_t choices = 32;   // n
  std::int64_t prompts = 256;  // of one completion request
  std::int64_t top_logprobs = 20;
  std::size_t stops = 16, stop_bytes = 1024, stop_ids = 64, bias_entries = 1024;
  std::size_t tools = ChatLimits::kTools, messages = ChatLimits::kMessages;
};

// The model as requests see it. Immutable while serving.
struct ServedModel {
  std::vector<std::string> names;  // the first is the one answers carry
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;
  std::string chat_missing;  // why there is none
  std::int64_t vocab_size = 0, max_model_len = 0;
  engine::GenerationDefaults defaults;
  Json chat_defaults = Json::object();  // --default-chat-template-kwargs

  bool knows(const std::string& name) const;
};

enum class Dialect : std::uint8_t { kChat, kCompletion, kMessages };

struct GenerationSpec {
  Dialect dialect = Dialect::kChat;
  bool stream = false, include_usage = false, continuous_usage = false;
  std::vector<std::vector<std::int32_t>> prompts;
  std::int64_t n = 1;
  engine::Request base;  // of every choice but for prompt and seed
  bool logprobs = false;
  bool echo = false;
  // Chat only.
  ThinkingMode thinking = ThinkingMode::kAdaptive;
  bool tools = false, only_first_call = false;
  ToolSchemas schemas;
  std::string forced;  // what the answer was made to begin with

  std::int64_t prompt_tokens() const;
};

ApiResult<GenerationSpec> parse_chat_request(const Json& body, const ServedModel& model,
                                             const Limits& limits);
ApiResult<GenerationSpec> parse_completion_request(const Json& body, const ServedModel& model,
                                                   const Limits& limits);
// 404 unless `model` (present and a string) is served.
std::optional<ApiError> check_model(Fields& fields, const ServedModel& model);
// Sampling, stops and lengths, as both OpenAI dialects name them. `default_max`: without
// max_tokens; clamped to what the context leaves.
void parse_sampling(Fields& fields, GenerationSpec& spec, const ServedModel& model,
                    const Limits& limits, const char* max_name, std::int64_t default_max);
// Messages, tools and template variables to `spec.prompts[0]` and how the answer is to be read.
// The names are those of the error's fields.
struct ChatParts {
  Json messages = Json::array(), tools, kwargs = Json::object();
  std::string tool_choice = "auto", forced_tool;
  bool add_generation_prompt = true, continue_final = false;
};
std::optional<ApiError> render_chat(const ChatParts& parts, const ServedModel& model,
                                    GenerationSpec& spec);
// Lengths against the context, once the prompts are known.
std::optional<ApiError> check_lengths(GenerationSpec& spec, const ServedModel& model,
                                      bool max_given);

}  // namespace monolayer::server

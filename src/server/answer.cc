#include "server/answer.h"

#include <chrono>
#include <cstdio>
#include <random>

namespace monolayer::server {

std::string random_id(const std::string& prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  char text[32];
  std::snprintf(text, sizeof(text), "%016llx%08llx", static_cast<unsigned long long>(random()),
                static_cast<unsigned long long>(random() & 0xffffffffU));
  return prefix + text;
}

Json Usage::openai() const {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning_tokens}}}};
}

Answer::Answer(std::shared_ptr<Responder> out, std::shared_ptr<const GenerationSpec> spec,
               const ServedModel& model)
    : out_(std::move(out)), spec_(std::move(spec)), model_(model) {
  id_ = random_id(spec_->dialect == Dialect::kChat         ? "chatcmpl-"
                  : spec_->dialect == Dialect::kCompletion ? "cmpl-"
                                                           : "msg_");
  created_ = std::chrono::duration_cast<std::chrono::seconds>(
                 std::chrono::system_clock::now().time_since_epoch())
                 .count();
  usage_.prompt_tokens = spec_->prompt_tokens();
  counts_.resize(spec_->prompts.size() * static_cast<std::size_t>(spec_->n));
}

void Answer::output(std::size_t index, engine::RequestOutput output) {
  if (over_) return;
  const auto tokens = static_cast<std::int64_t>(output.tokens.size());
  counts_[index] += tokens;
  usage_.completion_tokens += tokens;
  if (output.finish == engine::FinishReason::kError) {
    ApiError error;
    error.status = 500;
    error.message = output.error.to_string();
    return fail(error);
  }
  // Siblings share the prompt: only what the first found is the prompt's.
  if (output.finish && index % static_cast<std::size_t>(spec_->n) == 0)
    usage_.cached_tokens += output.cached_tokens;
  add(index, output);
}

void Answer::complete() {
  if (over_) return;
  over_ = true;
  finish_answer();
}

void Answer::fail(const ApiError& error) {
  if (over_) return;
  over_ = true;
  if (spec_->stream) {
    stream_error(error);
    out_->end();
    return;
  }
  Headers headers;
  if (error.retry_after > 0) headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  out_->respond(error.status, "application/json", error_body(error), headers);
}

std::string Answer::dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Answer::event(const Json& data) { out_->write("data: " + dump(data) + "\n\n"); }

std::string Answer::token_text(std::int32_t id) const { return model_.tokenizer.decode({&id, 1}); }

std::unique_ptr<AnswerParser> Answer::make_parser() const {
  auto parser = std::make_unique<AnswerParser>(
      spec_->thinking, ToolParser(spec_->schemas, spec_->tools, spec_->only_first_call));
  return parser;
}

ReasoningParser Answer::token_reader() const {
  ReasoningParser reader(spec_->thinking);
  reader.push(spec_->forced);
  return reader;
}

std::int64_t Answer::reasoning_tokens(const std::vector<std::int32_t>& tokens,
                                      ReasoningParser& reader) const {
  std::int64_t count = 0;
  for (const std::int32_t id : tokens) {
    if (reader.in_reasoning()) ++count;
    reader.push(token_text(id));
  }
  return count;
}

Json Answer::base(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.names.front()}};
}

std::unique_ptr<Answer> make_answer(std::shared_ptr<Responder> out,
                                    std::shared_ptr<const GenerationSpec> spec,
                                    const ServedModel& model) {
  if (spec->stream) out->begin("text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}});
  switch (spec->dialect) {
    case Dialect::kCompletion:
      return make_completion_answer(std::move(out), std::move(spec), model);
    case Dialect::kMessages:
      return make_messages_answer(std::move(out), std::move(spec), model);
    case Dialect::kChat:
      break;
  }
  return make_chat_answer(std::move(out), std::move(spec), model);
}

}  // namespace monolayer::server

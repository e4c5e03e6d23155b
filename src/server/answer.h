// One HTTP answer in the making: engine outputs in, a dialect's JSON or events out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/answer_parser.h"
#include "server/generation_spec.h"
#include "server/http.h"

namespace monolayer::server {

struct Usage {
  std::int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, reasoning_tokens = 0;
  Json openai() const;
};

class Answer {
 public:
  Answer(std::shared_ptr<Responder> out, std::shared_ptr<const GenerationSpec> spec,
         const ServedModel& model);
  virtual ~Answer() = default;

  // Choice `index` (prompt-major) went on; the last output of a choice has `finish`.
  void output(std::size_t index, engine::RequestOutput output);
  // All choices are finished: what closes the answer. Nothing is sent twice.
  void complete();
  // Ends the answer with an error: by its status, or inside the stream if that has begun.
  void fail(const ApiError& error);
  // A sign of life on a stream that has nothing to say.
  virtual void ping() = 0;
  const Usage& usage() const { return usage_; }
  std::size_t choices() const { return counts_.size(); }

 protected:
  virtual void add(std::size_t index, engine::RequestOutput& output) = 0;
  virtual void finish_answer() = 0;
  virtual std::string error_body(const ApiError& error) const { return error.openai(); }
  virtual void stream_error(const ApiError& error) = 0;

  void event(const Json& data);  // "data: ...\n\n"
  std::string token_text(std::int32_t id) const;
  std::unique_ptr<AnswerParser> make_parser() const;
  // What has the tokens of an answer one by one, to count those that come inside reasoning: what is
  // delivered together, a run of accepted guesses for instance, must not count as one.
  ReasoningParser token_reader() const;
  std::int64_t reasoning_tokens(const std::vector<std::int32_t>& tokens,
                                ReasoningParser& reader) const;
  static std::string dump(const Json& json);
  Json base(const char* object) const;

  std::shared_ptr<Responder> out_;
  std::shared_ptr<const GenerationSpec> spec_;
  const ServedModel& model_;
  std::string id_;
  std::int64_t created_ = 0;
  Usage usage_;
  std::vector<std::int64_t> counts_;  // tokens by choice
  bool over_ = false;
};

// Starts a stream's headers at once if the request asked for one.
std::unique_ptr<Answer> make_answer(std::shared_ptr<Responder> out,
                                    std::shared_ptr<const GenerationSpec> spec,
                                    const ServedModel& model);
std::unique_ptr<Answer> make_chat_answer(std::shared_ptr<Responder> out,
                                         std::shared_ptr<const GenerationSpec> spec,
                                         const ServedModel& model);
std::unique_ptr<Answer> make_completion_answer(std::shared_ptr<Responder> out,
                                               std::shared_ptr<const GenerationSpec> spec,
                                               const ServedModel& model);
std::unique_ptr<Answer> make_messages_answer(std::shared_ptr<Responder> out,
                                             std::shared_ptr<const GenerationSpec> spec,
                                             const ServedModel& model);
// "chatcmpl-" and 24 random hexadecimal digits, for example.
std::string random_id(const std::string& prefix);

}  // namespace monolayer::server

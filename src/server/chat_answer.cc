// Answers of /v1/chat/completions.
#include <utility>

#include "server/answer.h"

namespace monolayer::server {
namespace {

struct Call {
  std::string id, name, arguments;
};

struct Choice {
  Choice(std::unique_ptr<AnswerParser> text_parser, ReasoningParser token_reader)
      : parser(std::move(text_parser)), tokens(std::move(token_reader)) {}

  std::unique_ptr<AnswerParser> parser;
  ReasoningParser tokens;
  bool begun = false;
  std::string reasoning, content, finish;
  std::vector<Call> calls;
  Json logprobs = Json::array();
};

class ChatAnswer : public Answer {
 public:
  ChatAnswer(std::shared_ptr<Responder> out, std::shared_ptr<const GenerationSpec> spec,
             const ServedModel& model)
      : Answer(std::move(out), std::move(spec), model) {
    for (std::size_t i = 0; i < choices(); ++i) state_.emplace_back(make_parser(), token_reader());
  }

  void ping() override {
    if (spec_->stream && !over_) out_->write(": waiting\n\n");
  }

 protected:
  void add(std::size_t index, engine::RequestOutput& output) override {
    Choice& choice = state_[index];
    usage_.reasoning_tokens += reasoning_tokens(output.tokens, choice.tokens);
    Json logprobs = logprob_entries(output);
    if (!choice.begun) {
      choice.begun = true;
      if (spec_->stream) chunk(index, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
      if (!spec_->forced.empty()) deltas(index, choice.parser->push(spec_->forced), logprobs);
    }
    deltas(index, choice.parser->push(output.text), logprobs);
    if (output.finish) {
      deltas(index, choice.parser->finish(), logprobs);
      choice.finish = finish_reason(choice, *output.finish);
    }
    if (!spec_->stream) {
      for (Json& entry : logprobs) choice.logprobs.push_back(std::move(entry));
      return;
    }
    // Tokens whose text is still held back have their logprobs sent all the same.
    if (!logprobs.empty()) chunk(index, {{"content", ""}}, std::move(logprobs), nullptr);
    if (output.finish) chunk(index, Json::object(), nullptr, choice.finish);
  }

  void finish_answer() override {
    if (spec_->stream) {
      if (spec_->include_usage) {
        Json last = base("chat.completion.chunk");
        last["choices"] = Json::array();
        last["usage"] = usage_.openai();
        event(last);
      }
      out_->write("data: [DONE]\n\n");
      out_->end();
      return;
    }
    Json body = base("chat.completion");
    body["choices"] = Json::array();
    for (std::size_t i = 0; i < state_.size(); ++i) body["choices"].push_back(whole(i));
    body["usage"] = usage_.openai();
    out_->respond(200, "application/json", dump(body));
  }

  void stream_error(const ApiError& error) override {
    out_->write("data: " + error.openai() + "\n\ndata: [DONE]\n\n");
  }

 private:
  static std::string finish_reason(const Choice& choice, engine::FinishReason reason) {
    if (reason == engine::FinishReason::kStop && choice.parser->calls() > 0) return "tool_calls";
    return std::string(engine::finish_name(reason));
  }

  Json logprob_of(const engine::TokenLogprob& entry) const {
    const std::string text = token_text(entry.id);
    Json bytes = Json::array();
    for (const char c : model_.tokenizer.token_bytes(entry.id))
      bytes.push_back(static_cast<unsigned char>(c));
    return {{"token", text}, {"logprob", entry.logprob}, {"bytes", bytes}};
  }

  Json logprob_entries(const engine::RequestOutput& output) const {
    Json entries = Json::array();
    if (!spec_->logprobs) return entries;
    for (const engine::Logprobs& each : output.logprobs) {
      Json entry = logprob_of(each.chosen);
      entry["top_logprobs"] = Json::array();
      for (const engine::TokenLogprob& top : each.top)
        entry["top_logprobs"].push_back(logprob_of(top));
      entries.push_back(std::move(entry));
    }
    return entries;
  }

  void chunk(std::size_t index, Json delta, Json logprobs, Json finish) {
    Json body = base("chat.completion.chunk");
    Json choice = {{"index", index}, {"delta", std::move(delta)}};
    choice["logprobs"] =
        logprobs.is_null() || logprobs.empty() ? Json() : Json{{"content", std::move(logprobs)}};
    choice["finish_reason"] = std::move(finish);
    body["choices"] = Json::array({std::move(choice)});
    if (spec_->include_usage) body["usage"] = spec_->continuous_usage ? usage_.openai() : Json();
    event(body);
  }

  void delta(std::size_t index, Json part, Json& logprobs) {
    chunk(index, std::move(part), std::exchange(logprobs, Json::array()), nullptr);
  }

  void deltas(std::size_t index, AnswerDelta parts, Json& logprobs) {
    Choice& choice = state_[index];
    if (!parts.reasoning.empty()) {
      if (spec_->stream) {
        delta(index, {{"reasoning_content", parts.reasoning}}, logprobs);
      } else {
        choice.reasoning += parts.reasoning;
      }
    }
    for (ToolEvent& event : parts.events) tool_event(index, choice, event, logprobs);
  }

  void tool_event(std::size_t index, Choice& choice, ToolEvent& event, Json& logprobs) {
    if (event.kind == ToolEvent::Kind::kContent) {
      if (spec_->stream) {
        delta(index, {{"content", event.text}}, logprobs);
      } else {
        choice.content += event.text;
      }
      return;
    }
    if (event.kind == ToolEvent::Kind::kStart) {
      choice.calls.push_back({random_id("call_"), event.text, ""});
      if (!spec_->stream) return;
      const Json call = {{"index", event.call},
                         {"id", choice.calls.back().id},
                         {"type", "function"},
                         {"function", {{"name", event.text}, {"arguments", ""}}}};
      return delta(index, {{"tool_calls", Json::array({call})}}, logprobs);
    }
    if (!spec_->stream) {
      choice.calls.back().arguments += event.text;
      return;
    }
    const Json call = {{"index", event.call}, {"function", {{"arguments", event.text}}}};
    delta(index, {{"tool_calls", Json::array({call})}}, logprobs);
  }

  Json whole(std::size_t index) {
    Choice& choice = state_[index];
    Json message = {{"role", "assistant"}};
    const bool none =
        choice.content.empty() && (!choice.calls.empty() || !choice.reasoning.empty());
    message["content"] = none ? Json() : Json(choice.content);
    if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
    if (!choice.calls.empty()) {
      Json calls = Json::array();
      for (const Call& call : choice.calls)
        calls.push_back({{"id", call.id},
                         {"type", "function"},
                         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
      message["tool_calls"] = std::move(calls);
    }
    Json result = {{"index", index}, {"message", std::move(message)}};
    result["logprobs"] = spec_->logprobs ? Json{{"content", choice.logprobs}} : Json();
    result["finish_reason"] = choice.finish;
    return result;
  }

  std::vector<Choice> state_;
};

}  // namespace

std::unique_ptr<Answer> make_chat_answer(std::shared_ptr<Responder> out,
                                         std::shared_ptr<const GenerationSpec> spec,
                                         const ServedModel& model) {
  return std::make_unique<ChatAnswer>(std::move(out), std::move(spec), model);
}

}  // namespace monolayer::server

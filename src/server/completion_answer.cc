// Answers of /v1/completions.
#include <utility>

#include "server/answer.h"

namespace monolayer::server {
namespace {

struct Choice {
  std::string text, finish;
  bool begun = false;
  std::size_t offset = 0;  // characters before the next token
  Json tokens = Json::array(), values = Json::array(), top = Json::array(), offsets = Json::array();
};

std::size_t characters(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0U) != 0x80U ? 1 : 0;
  return count;
}

class CompletionAnswer : public Answer {
 public:
  CompletionAnswer(std::shared_ptr<Responder> out, std::shared_ptr<const GenerationSpec> spec,
                   const ServedModel& model)
      : Answer(std::move(out), std::move(spec), model), state_(choices()) {}

  void ping() override {
    if (spec_->stream && !over_) out_->write(": waiting\n\n");
  }

 protected:
  void add(std::size_t index, engine::RequestOutput& output) override {
    Choice& choice = state_[index];
    std::string text;
    if (spec_->echo && !choice.begun) {
      const auto& prompt = prompt_of(index);
      text = model_.tokenizer.decode(prompt, spec_->base.text.skip_special);
      if (spec_->logprobs) token(choice, prompt.front(), Json(), Json());
    }
    choice.begun = true;
    for (const engine::Logprobs& each : output.prompt_logprobs) add_logprobs(choice, each);
    if (spec_->logprobs)
      for (const engine::Logprobs& each : output.logprobs) add_logprobs(choice, each);
    text += output.text;
    if (output.finish) choice.finish = engine::finish_name(*output.finish);
    if (!spec_->stream) {
      choice.text += text;
      return;
    }
    if (text.empty() && choice.tokens.empty() && !output.finish) return;
    Json body = base("text_completion");
    body["choices"] = Json::array({piece(index, std::move(text))});
    if (spec_->include_usage) body["usage"] = spec_->continuous_usage ? usage_.openai() : Json();
    event(body);
  }

  void finish_answer() override {
    if (spec_->stream) {
      if (spec_->include_usage) {
        Json last = base("text_completion");
        last["choices"] = Json::array();
        last["usage"] = usage_.openai();
        event(last);
      }
      out_->write("data: [DONE]\n\n");
      out_->end();
      return;
    }
    Json body = base("text_completion");
    body["choices"] = Json::array();
    for (std::size_t i = 0; i < state_.size(); ++i)
      body["choices"].push_back(piece(i, std::move(state_[i].text)));
    body["usage"] = usage_.openai();
    out_->respond(200, "application/json", dump(body));
  }

  void stream_error(const ApiError& error) override {
    out_->write("data: " + error.openai() + "\n\ndata: [DONE]\n\n");
  }

 private:
  const std::vector<std::int32_t>& prompt_of(std::size_t index) const {
    return spec_->prompts[index / static_cast<std::size_t>(spec_->n)];
  }

  void token(Choice& choice, std::int32_t id, Json value, Json top) {
    const std::string text = token_text(id);
    choice.tokens.push_back(text);
    choice.values.push_back(std::move(value));
    choice.top.push_back(std::move(top));
    choice.offsets.push_back(choice.offset);
    choice.offset += characters(text);
  }

  void add_logprobs(Choice& choice, const engine::Logprobs& each) {
    Json top = Json::object();
    for (const engine::TokenLogprob& entry : each.top) top[token_text(entry.id)] = entry.logprob;
    if (!each.top.empty()) top[token_text(each.chosen.id)] = each.chosen.logprob;
    token(choice, each.chosen.id, each.chosen.logprob, std::move(top));
  }

  // What has gathered since the last piece.
  Json piece(std::size_t index, std::string text) {
    Choice& choice = state_[index];
    Json result = {{"index", index}, {"text", std::move(text)}};
    result["logprobs"] = nullptr;
    if (spec_->logprobs)
      result["logprobs"] = {{"tokens", std::exchange(choice.tokens, Json::array())},
                            {"token_logprobs", std::exchange(choice.values, Json::array())},
                            {"top_logprobs", std::exchange(choice.top, Json::array())},
                            {"text_offset", std::exchange(choice.offsets, Json::array())}};
    result["finish_reason"] = choice.finish.empty() ? Json() : Json(choice.finish);
    return result;
  }

  std::vector<Choice> state_;
};

}  // namespace

std::unique_ptr<Answer> make_completion_answer(std::shared_ptr<Responder> out,
                                               std::shared_ptr<const GenerationSpec> spec,
                                               const ServedModel& model) {
  return std::make_unique<CompletionAnswer>(std::move(out), std::move(spec), model);
}

}  // namespace monolayer::server

// Answers of /v1/messages.
#include <utility>

#include "server/answer.h"

namespace monolayer::server {
namespace {

struct Block {
  std::string type, text, id, name;  // thinking, text or tool_use; text or the input's JSON
};

class MessagesAnswer : public Answer {
 public:
  MessagesAnswer(std::shared_ptr<Responder> out, std::shared_ptr<const GenerationSpec> spec,
                 const ServedModel& model)
      : Answer(std::move(out), std::move(spec), model),
        parser_(make_parser()),
        tokens_(token_reader()) {}

  void ping() override {
    if (!spec_->stream || over_) return;
    start();
    send("ping", {{"type", "ping"}});
  }

 protected:
  void add(std::size_t, engine::RequestOutput& output) override {
    usage_.reasoning_tokens += reasoning_tokens(output.tokens, tokens_);
    if (!begun_) usage_.cached_tokens = output.cached_tokens;
    start();
    if (!spec_->forced.empty() && !forced_) take(parser_->push(spec_->forced));
    forced_ = true;
    take(parser_->push(output.text));
    if (!output.finish) return;
    usage_.cached_tokens = output.cached_tokens;
    take(parser_->finish());
    close_block();
    const bool stop = *output.finish == engine::FinishReason::kStop;
    reason_ = stop && parser_->calls() > 0                      ? "tool_use"
              : stop && !output.stop_string.empty()             ? "stop_sequence"
              : stop                                            ? "end_turn"
              : *output.finish == engine::FinishReason::kLength ? "max_tokens"
                                                                : "end_turn";
    if (!output.stop_string.empty()) stop_ = output.stop_string;
  }

  void finish_answer() override {
    if (spec_->stream) {
      send("message_delta", {{"type", "message_delta"},
                             {"delta", {{"stop_reason", reason_}, {"stop_sequence", stop_}}},
                             {"usage", usage()}});
      send("message_stop", {{"type", "message_stop"}});
      out_->end();
      return;
    }
    Json body = message();
    for (const Block& block : blocks_) {
      if (block.type == "tool_use") {
        body["content"].push_back({{"type", block.type},
                                   {"id", block.id},
                                   {"name", block.name},
                                   {"input", Json::parse(block.text, nullptr, false)}});
      } else if (block.type == "thinking") {
        body["content"].push_back(
            {{"type", block.type}, {"thinking", block.text}, {"signature", ""}});
      } else {
        body["content"].push_back({{"type", block.type}, {"text", block.text}});
      }
    }
    body["stop_reason"] = reason_;
    body["stop_sequence"] = stop_;
    body["usage"] = usage();
    out_->respond(200, "application/json", dump(body));
  }

  std::string error_body(const ApiError& error) const override { return error.anthropic(); }
  void stream_error(const ApiError& error) override {
    out_->write("event: error\ndata: " + error.anthropic() + "\n\n");
  }

 private:
  Json usage() const {
    return {{"input_tokens", usage_.prompt_tokens - usage_.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage_.cached_tokens},
            {"output_tokens", usage_.completion_tokens}};
  }
  Json message() const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_.names.front()},
            {"content", Json::array()},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr},
            {"usage", usage()}};
  }
  void send(const std::string& name, const Json& data) {
    out_->write("event: " + name + "\ndata: " + dump(data) + "\n\n");
  }
  void start() {
    if (begun_) return;
    begun_ = true;
    if (spec_->stream) send("message_start", {{"type", "message_start"}, {"message", message()}});
  }
  std::size_t index() const { return blocks_.size() - 1; }

  void close_block() {
    if (!open_) return;
    open_ = false;
    if (!spec_->stream) return;
    if (blocks_.back().type == "thinking")
      send("content_block_delta", {{"type", "content_block_delta"},
                                   {"index", index()},
                                   {"delta", {{"type", "signature_delta"}, {"signature", ""}}}});
    send("content_block_stop", {{"type", "content_block_stop"}, {"index", index()}});
  }
  void open_block(const std::string& type, const std::string& name) {
    if (open_ && blocks_.back().type == type && type != "tool_use") return;
    close_block();
    Block block{type, "", type == "tool_use" ? random_id("toolu_") : "", name};
    blocks_.push_back(block);
    open_ = true;
    if (!spec_->stream) return;
    Json head = {{"type", type}};
    if (type == "tool_use") {
      head["id"] = block.id;
      head["name"] = name;
      head["input"] = Json::object();
    } else if (type == "thinking") {
      head["thinking"] = "";
      head["signature"] = "";
    } else {
      head["text"] = "";
    }
    send("content_block_start",
         {{"type", "content_block_start"}, {"index", index()}, {"content_block", head}});
  }
  void more(const char* delta_type, const char* field, const std::string& text) {
    blocks_.back().text += text;
    if (!spec_->stream) return;
    send("content_block_delta", {{"type", "content_block_delta"},
                                 {"index", index()},
                                 {"delta", {{"type", delta_type}, {field, text}}}});
  }
  void take(const AnswerDelta& delta) {
    if (!delta.reasoning.empty()) {
      open_block("thinking", "");
      more("thinking_delta", "thinking", delta.reasoning);
    }
    for (const ToolEvent& event : delta.events) {
      switch (event.kind) {
        case ToolEvent::Kind::kContent:
          open_block("text", "");
          more("text_delta", "text", event.text);
          break;
        case ToolEvent::Kind::kStart:
          open_block("tool_use", event.text);
          break;
        case ToolEvent::Kind::kArguments:
          // Text between a call's parameters may have opened another block meanwhile.
          if (!open_ || blocks_.back().type != "tool_use") break;
          more("input_json_delta", "partial_json", event.text);
          break;
      }
    }
  }

  std::unique_ptr<AnswerParser> parser_;
  ReasoningParser tokens_;
  std::vector<Block> blocks_;
  bool begun_ = false, open_ = false, forced_ = false;
  std::string reason_ = "end_turn";
  Json stop_;
};

}  // namespace

std::unique_ptr<Answer> make_messages_answer(std::shared_ptr<Responder> out,
                                             std::shared_ptr<const GenerationSpec> spec,
                                             const ServedModel& model) {
  return std::make_unique<MessagesAnswer>(std::move(out), std::move(spec), model);
}

}  // namespace monolayer::server

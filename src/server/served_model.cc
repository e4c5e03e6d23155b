#include "server/served_model.h"

#include <utility>

#include "checkpoint/text_io.h"

namespace monolayer::server {
namespace {

constexpr const char* kFlag = "--default-chat-template-kwargs";

struct ChatTrial {
  std::optional<ApiError> error;
  bool blank = false;  // the error: a prompt without tokens
};

// The simplest chat there is. What is wrong with it is wrong with every one.
ChatTrial try_chat(const ServedModel& model, const Json& kwargs) {
  ChatParts parts;
  parts.messages.push_back({{"role", "user"}, {"content", "Hi"}});
  parts.kwargs = kwargs;
  parts.tool_choice = "none";
  GenerationSpec spec;
  if (auto error = render_chat(parts, model, spec)) return {std::move(error), false};
  if (spec.prompts.front().empty())
    return {bad_field("messages", "the chat template writes nothing"), true};
  return {};
}

}  // namespace

Result<std::shared_ptr<ServedModel>> served_model(const engine::OpenModel& model,
                                                  std::vector<std::string> names,
                                                  std::int64_t length, const std::string& kwargs) {
  ML_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(model.folder));
  ML_ASSIGN_OR_RETURN(auto defaults, engine::generation_defaults(model.folder, model.config));
  auto chat = ChatTemplate::load(model.folder);
  auto served = std::shared_ptr<ServedModel>(
      new ServedModel{std::move(names), std::move(tokenizer), std::nullopt, "",
                      model.config.vocab_size, length, std::move(defaults), Json::object()});
  bool works = false;  // with nothing but messages
  if (chat.ok()) {
    served->chat = *std::move(chat);
    const ChatTrial trial = try_chat(*served, Json::object());
    works = !trial.error;
    if (trial.blank) {
      served->chat.reset();
      served->chat_missing = model.folder + ": " + trial.error->message;
    }
  } else {
    served->chat_missing = chat.status().to_string();
  }
  if (kwargs.empty()) return served;
  const auto parsed = parse_json(kwargs, kFlag);  // no key twice
  if (!parsed.ok())
    return Status(Code::kInvalidArgument, kFlag,
                  "must be a JSON object; " + parsed.status().message());
  if (!parsed->is_object()) return Status(Code::kInvalidArgument, kFlag, "must be a JSON object");
  served->chat_defaults = *parsed;
  if (!works) return served;
  if (const ChatTrial trial = try_chat(*served, served->chat_defaults); trial.error)
    return Status(Code::kInvalidArgument, kFlag, "no chat works with it: " + trial.error->message);
  return served;
}

}  // namespace monolayer::server

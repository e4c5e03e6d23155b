#include "server/served_model.h"

#include <utility>

#include "checkpoint/text_io.h"

namespace monolayer::server {
namespace {

constexpr const char* kFlag = "--default-chat-template-kwargs";

// The simplest chat there is. What is wrong with it is wrong with every one.
std::optional<ApiError> try_chat(const ServedModel& model, const Json& kwargs) {
  ChatParts parts;
  parts.messages.push_back({{"role", "user"}, {"content", "Hi"}});
  parts.kwargs = kwargs;
  parts.tool_choice = "none";
  GenerationSpec spec;
  if (auto error = render_chat(std::move(parts), model, spec)) return error;
  if (spec.prompts.front().empty())
    return bad_field("messages", "the chat template writes nothing");
  return std::nullopt;
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
    const auto error = try_chat(*served, Json::object());
    works = !error;
    if (error && error->message.ends_with("writes nothing")) {
      served->chat.reset();
      served->chat_missing = model.folder + ": " + error->message;
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
  if (const auto error = try_chat(*served, served->chat_defaults))
    return Status(Code::kInvalidArgument, kFlag, "no chat works with it: " + error->message);
  return served;
}

}  // namespace monolayer::server

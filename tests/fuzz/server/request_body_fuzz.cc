// Any bytes as a request body of each route: a checked request, or an error whose own body is JSON.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "../fuzz_check.h"
#include "server/generation_spec.h"
#include "server/messages_request.h"

namespace {

using monolayer::ChatTemplate;
using monolayer::Tokenizer;
using monolayer::server::ApiError;
using monolayer::server::ApiResult;
using monolayer::server::GenerationSpec;
using monolayer::server::Json;
using monolayer::server::ServedModel;

const ServedModel& model() {
  static const ServedModel made = [] {
    // A binary taken to another machine is told where the files are.
    const char* moved = std::getenv("MONOLAYER_FUZZ_DATA");
    const std::string folder =
        std::string(moved != nullptr ? moved : MONOLAYER_SOURCE_DIR) + "/assets/nano";
    auto tokenizer = Tokenizer::load(folder);
    auto chat = ChatTemplate::load(folder);
    FUZZ_CHECK(tokenizer.ok() && chat.ok());
    return ServedModel{{"nano"}, *tokenizer, *chat, "", 2048, 4096, {}, Json::object()};
  }();
  return made;
}

void check(const ApiResult<GenerationSpec>& result) {
  if (const auto* error = std::get_if<ApiError>(&result)) {
    FUZZ_CHECK(error->status == 400 || error->status == 404);
    FUZZ_CHECK(!error->param.empty());
    FUZZ_CHECK(Json::accept(error->openai()) && Json::accept(error->anthropic()));
    return;
  }
  const auto& spec = std::get<GenerationSpec>(result);
  FUZZ_CHECK(!spec.prompts.empty() && spec.n >= 1);
  for (const auto& prompt : spec.prompts) {
    FUZZ_CHECK(!prompt.empty());
    for (const std::int32_t id : prompt) FUZZ_CHECK(id >= 0 && id < 2048);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = monolayer::server::parse_body(text, 64);
  if (const auto* error = std::get_if<ApiError>(&json)) {
    FUZZ_CHECK(error->param == "body" && Json::accept(error->openai()));
    return 0;
  }
  const Json& body = std::get<Json>(json);
  check(monolayer::server::parse_chat_request(body, model(), {}));
  check(monolayer::server::parse_completion_request(body, model(), {}));
  check(monolayer::server::parse_messages_request(body, model(), {}, true));
  return 0;
}

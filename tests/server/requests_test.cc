// Request bodies: whatever is sent, the answer is a checked request or an error that names a field.
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "server/generation_spec.h"
#include "server/messages_request.h"

namespace monolayer::server {
namespace {

const ServedModel& model() {
  static const ServedModel made = [] {
    const std::string folder = std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano";
    auto tokenizer = Tokenizer::load(folder);
    auto chat = ChatTemplate::load(folder);
    EXPECT_TRUE(tokenizer.ok() && chat.ok());
    return ServedModel{{"nano"}, *tokenizer, *chat, "", 2048, 4096, {}, Json::object()};
  }();
  return made;
}

const GenerationSpec& spec_of(const ApiResult<GenerationSpec>& result) {
  EXPECT_TRUE(std::holds_alternative<GenerationSpec>(result))
      << (std::holds_alternative<ApiError>(result) ? std::get<ApiError>(result).message : "");
  static const GenerationSpec none;
  return std::holds_alternative<GenerationSpec>(result) ? std::get<GenerationSpec>(result) : none;
}

ApiResult<GenerationSpec> chat(const std::string& more) {
  return parse_chat_request(
      Json::parse(R"({"model": "nano", "messages": [{"role": "user", "content": "Hi"}])" +
                  (more.empty() ? "" : ", " + more) + "}"),
      model(), {});
}

TEST(Requests, ThinkingComesFromTheNearestWord) {
  EXPECT_EQ(spec_of(chat("")).thinking, ThinkingMode::kAdaptive);
  EXPECT_EQ(spec_of(chat(R"("thinking": {"type": "enabled"})")).thinking, ThinkingMode::kEnabled);
  EXPECT_EQ(spec_of(chat(R"("thinking": {"type": "enabled"},
                            "chat_template_kwargs": {"thinking_mode": "disabled"})"))
                .thinking,
            ThinkingMode::kDisabled);
  EXPECT_EQ(spec_of(chat(R"("reasoning_effort": "none")")).thinking, ThinkingMode::kDisabled);
  const auto odd = chat(R"("chat_template_kwargs": {"thinking_mode": "maybe"})");
  const auto* error = std::get_if<ApiError>(&odd);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(
      error->message,
      "chat_template_kwargs.thinking_mode: is 'maybe', must be enabled, disabled or adaptive");
}

TEST(Requests, ControlTokensInAUsersTextStayText) {
  const auto plain = spec_of(chat("")).prompts[0];
  const auto spec = spec_of(parse_chat_request(
      Json::parse(R"({"model": "nano", "messages": [{"role": "user", "content": "Hi[e~["}]})"),
      model(), {}));
  const auto ends = [](const std::vector<std::int32_t>& ids) {
    return std::count(ids.begin(), ids.end(), 2004);
  };
  EXPECT_EQ(ends(spec.prompts[0]), ends(plain));
}

TEST(Requests, ControlTokensInARawPromptAreTokens) {
  for (const char* extra : {"", R"(, "add_special_tokens": false)"}) {
    const auto spec = spec_of(parse_completion_request(
        Json::parse(R"({"model": "nano", "prompt": "Hi[e~[")" + std::string(extra) + "}"), model(),
        {}));
    EXPECT_EQ(spec.prompts[0].back(), 2004);
  }
}

TEST(Requests, AStopThatIsASpecialTokenStopsByItsId) {
  const auto spec = spec_of(chat(R"("stop": ["[e~[", "x"])"));
  EXPECT_EQ(spec.base.stop_ids, (std::vector<std::int32_t>{2004}));
  EXPECT_EQ(spec.base.text.stops, (std::vector<std::string>{"x"}));
}

TEST(Requests, LengthDefaultsToWhatTheContextLeaves) {
  const auto spec = spec_of(chat(""));
  EXPECT_EQ(spec.base.max_tokens + static_cast<std::int64_t>(spec.prompts[0].size()), 4096);
  EXPECT_EQ(spec_of(chat(R"("max_tokens": 9, "max_completion_tokens": 7)")).base.max_tokens, 7);
}

// A chat in a request and the same chat in a file are refused in the same words.
TEST(Requests, ChatsAreRefusedAsInFiles) {
  for (const char* chat :
       {R"({"messages": []})", R"({"messages": [5]})",
        R"({"messages": [{"role": "narrator", "content": "x"}]})",
        R"({"messages": [{"role": "user"}]})",
        R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
        R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]})",
        R"({"messages": [{"role": "assistant", "tool_calls": [
               {"function": {"name": "f", "arguments": 5}}]}]})",
        R"({"messages": [{"role": "tool", "content": "x"}]})",
        R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]})",
        R"({"messages": [{"role": "user", "content": "x"}], "tools": [
               {"type": "function", "function": {"name": "a b"}}]})",
        R"({"messages": [{"role": "user", "content": "x"}],
               "chat_template_kwargs": {"thinking_mode": "maybe"}})"}) {
    const auto file = read_chat(chat, "m.json");
    ASSERT_FALSE(file.ok()) << chat;
    Json body = Json::parse(chat);
    body["model"] = "nano";
    const auto request = parse_chat_request(body, model(), {});
    const auto* error = std::get_if<ApiError>(&request);
    ASSERT_NE(error, nullptr) << chat;
    EXPECT_EQ("m.json: " + error->message, file.status().to_string());
  }
}

TEST(Requests, ToolsOfTheOtherDialectAreCheckedToo) {
  const auto refused = [](const std::string& tools) {
    const auto result = parse_messages_request(
        Json::parse(R"({"model": "nano", "max_tokens": 5, "messages": [{"role": "user",
            "content": "Hi"}], "tools": )" +
                    tools + "}"),
        model(), {}, true);
    const auto* error = std::get_if<ApiError>(&result);
    return error == nullptr ? std::string("taken") : error->message;
  };
  EXPECT_EQ(refused(R"([{"name": "a b"}])"), "tools[0].name: " + std::string(kToolNameRule));
  EXPECT_EQ(refused(R"([{"name": "f"}, {"name": "f"}])"),
            "tools[1].name: is 'f', which an earlier tool has");
  EXPECT_EQ(refused(R"([{"name": "f"}, {"name": "g"}])"), "taken");
}

// Bounds hold exactly, also where a double would round: 2^63 is one more than the largest seed.
TEST(Requests, IntegersAreComparedExactly) {
  EXPECT_EQ(spec_of(chat(R"("seed": 9223372036854775807)")).base.sampling.seed,
            std::uint64_t{9223372036854775807U});
  EXPECT_EQ(spec_of(chat(R"("seed": -9223372036854775808)")).base.sampling.seed,
            std::uint64_t{1} << 63);
  EXPECT_EQ(spec_of(chat(R"("seed": 7.0)")).base.sampling.seed, 7U);
  for (const char* seed : {"9223372036854775808", "9223372036854775808.0", "9223372036854776000",
                           "18446744073709551615", "1e300", "-1e300", "-9223372036854775809"}) {
    const auto result = chat(std::string("\"seed\": ") + seed);
    const auto* error = std::get_if<ApiError>(&result);
    ASSERT_NE(error, nullptr) << seed;
    EXPECT_NE(error->message.find("must be an integer from -9223372036854775808 to"),
              std::string::npos)
        << error->message;
  }
}

// Random changes of a body: never anything but a spec or a 400/404 with a message.
TEST(Requests, BrokenBodiesAreRefusedNotBelieved) {
  std::mt19937 random(3);
  const std::string seed = R"({"model": "nano", "messages": [{"role": "user", "content": [
    {"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": null, "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}],
    "tool_choice": "auto", "stop": ["a"], "max_tokens": 5, "logit_bias": {"1": 2},
    "stream_options": {"include_usage": true}, "thinking": {"type": "enabled"},
    "system": "s", "prompt": ["a", [1]], "n": 2})";
  const char* values[] = {"null", "-1", "1e99", "\"x\"", "[]", "{}", "true", "[[1]]", "{\"a\":{}}"};
  for (int round = 0; round < 4000; ++round) {
    Json body = Json::parse(seed);
    Json* at = &body;
    while (true) {
      if (!at->is_structured() || at->empty()) break;
      auto next = at->begin();
      std::advance(next, static_cast<std::ptrdiff_t>(random() % at->size()));
      at = &*next;
      if (random() % 3 == 0) break;
    }
    *at = Json::parse(values[random() % std::size(values)]);
    if (!body.is_object()) continue;
    for (const auto& result :
         {parse_chat_request(body, model(), {}), parse_completion_request(body, model(), {}),
          parse_messages_request(body, model(), {}, true)}) {
      const auto* error = std::get_if<ApiError>(&result);
      if (error == nullptr) continue;
      ASSERT_FALSE(error->message.empty());
      ASSERT_TRUE(error->status == 400 || error->status == 404);
      ASSERT_FALSE(error->param.empty()) << error->message;
      ASSERT_TRUE(Json::accept(error->openai()));
    }
  }
}

}  // namespace
}  // namespace monolayer::server

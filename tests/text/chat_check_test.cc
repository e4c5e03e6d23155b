// What a chat may hold: every refusal names the field and what it must be.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "text/chat_check.h"

namespace monolayer {
namespace {

std::string refusal(const std::string& json) {
  const auto read = read_chat(json, "m.json");
  return read.ok() ? "" : read.status().to_string();
}

std::string with_tools(const std::string& tools) {
  return R"({"messages": [{"role": "user", "content": "Hi"}], "tools": )" + tools + "}";
}

TEST(ChatCheck, WhatAClientSendsIsTaken) {
  for (const char* chat :
       {R"([{"role": "user", "content": "Hi"}])",
        R"([{"role": "developer", "content": [{"type": "text", "text": "a"}, "b"]},
               {"role": "user", "content": "", "name": "Ann"}])",
        R"([{"role": "assistant", "content": null, "reasoning_content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"name": "g", "arguments": {"a": 1}}, {"name": "h"}]},
               {"role": "tool", "tool_call_id": "1", "content": "x"},
               {"role": "user", "content": "and now?"}, {"role": "assistant", "tool_calls": []}])"})
    EXPECT_EQ(refusal(chat), "");
  EXPECT_EQ(refusal(with_tools(R"([{"type": "function", "function": {"name": "a-b_1",
      "description": null, "parameters": {"type": "object"}, "strict": true}}])")),
            "");
  EXPECT_EQ(refusal(with_tools("null")), "");
}

TEST(ChatCheck, RefusalsNameTheField) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "messages: is empty"},
      {R"({"messages": []})", "messages: is empty"},
      {"[1]", "messages[0]: must be an object, is a number"},
      {R"([{"content": "x"}])", "messages[0].role: must be a string"},
      {R"([{"role": "narrator", "content": "x"}])",
       "messages[0].role: is 'narrator', must be one of system, developer, user, assistant, tool"},
      {R"([{"role": "user"}])",
       "messages[0].content: must be a string or a list of parts, is missing"},
      {R"([{"role": "system", "content": null}])",
       "messages[0].content: must be a string or a list of parts, is null"},
      {R"([{"role": "user", "content": {}}])",
       "messages[0].content: must be a string or a list of parts, is an object"},
      {R"([{"role": "user", "content": [7]}])",
       "messages[0].content[0]: must be an object, is a number"},
      {R"([{"role": "user", "content": ["a", {"type": "image_url", "image_url": {}}]}])",
       "messages[0].content[1].type: is 'image_url', must be 'text': the model takes nothing else"},
      {R"([{"role": "user", "content": [{"text": "a"}]}])",
       "messages[0].content[0].type: is missing, must be 'text': the model takes nothing else"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])",
       "messages[0].content[0].text: must be a string"},
      {R"([{"role": "assistant", "content": "a", "reasoning_content": 3}])",
       "messages[0].reasoning_content: must be a string, is a number"},
      {R"([{"role": "assistant", "tool_calls": 5}])",
       "messages[0].tool_calls: must be a list, is a number"},
      {R"([{"role": "assistant", "tool_calls": [5]}])",
       "messages[0].tool_calls[0]: must be an object, is a number"},
      {R"([{"role": "assistant", "tool_calls": [{"type": "web", "name": "f"}]}])",
       "messages[0].tool_calls[0].type: is 'web', must be 'function'"},
      {R"([{"role": "assistant", "tool_calls": [{"function": 1}]}])",
       "messages[0].tool_calls[0].function: must be an object, is a number"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])",
       "messages[0].tool_calls[0].function.name: must be a string of at least 1 byte"},
      {R"([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]}])",
       "messages[0].tool_calls[0].arguments: must be an object or JSON text of one, is a list"},
      {R"([{"role": "user", "content": "a"}, {"role": "tool", "content": "x"}])",
       "messages[1].role: is 'tool', but no earlier message has tool_calls"},
      {with_tools("{}"), "tools: must be a list, is an object"},
      {with_tools("[1]"), "tools[0]: must be an object, is a number"},
      {with_tools(R"([{"type": "web_search"}])"),
       "tools[0].type: is 'web_search', must be 'function'"},
      {with_tools(R"([{"function": {"name": "f"}}])"),
       "tools[0].type: is missing, must be 'function'"},
      {with_tools(R"([{"type": "function"}])"), "tools[0].function: must be an object"},
      {with_tools(R"([{"type": "function", "function": {"name": "1f"}}])"),
       "tools[0].function.name: " + std::string(kToolNameRule)},
      {with_tools(R"([{"type": "function", "function": {"name": "f"}},
                      {"type": "function", "function": {"name": "f"}}])"),
       "tools[1].function.name: is 'f', which an earlier tool has"},
      {with_tools(R"([{"type": "function", "function": {"name": "f", "description": []}}])"),
       "tools[0].function.description: must be a string, is a list"},
      {with_tools(R"([{"type": "function", "function": {"name": "f", "parameters": "x"}}])"),
       "tools[0].function.parameters: must be an object, is a string"},
      {R"({"messages": [{"role": "user", "content": "x"}], "thinking_mode": "maybe"})",
       "thinking_mode: is 'maybe', must be enabled, disabled or adaptive"},
      {R"({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": 1})",
       "chat_template_kwargs: must be an object, is a number"},
      {R"({"messages": [{"role": "user", "content": "x"}],
           "chat_template_kwargs": {"thinking_mode": "on"}})",
       "chat_template_kwargs.thinking_mode: is 'on', must be enabled, disabled or adaptive"}};
  for (const auto& [chat, expected] : cases)
    EXPECT_EQ(refusal(chat), "m.json: " + expected) << chat;
}

TEST(ChatCheck, LimitsAreNamed) {
  std::string tools = "[";
  for (int i = 0; i < 513; ++i)
    tools += (i > 0 ? "," : "") + std::string(R"({"type": "function", "function": {"name": "f)") +
             std::to_string(i) + "\"}}";
  EXPECT_EQ(refusal(with_tools(tools + "]")), "m.json: tools: has 513 entries, at most 512");
  EXPECT_EQ(refusal(std::string(65, '[') + std::string(65, ']')),
            "m.json: is nested 65 levels deep, at most 64");
  // A long word of a client's is cut in the answer.
  const std::string long_role(100000, 'x');
  EXPECT_LT(refusal(R"([{"role": ")" + long_role + R"(", "content": "x"}])").size(), 300u);
}

}  // namespace
}  // namespace monolayer

#include "server/tool_parser.h"

#include <chrono>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/answer_parser.h"

namespace monolayer::server {
namespace {

using nlohmann::ordered_json;

const std::string kM(kToolMark);

ordered_json tools() {
  return ordered_json::parse(R"([{"type": "function", "function": {"name": "write_file",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"},
      "content": {"type": "string"}, "mode": {"type": "integer"}, "ratio": {"type": "number"},
      "force": {"type": "boolean"}, "meta": {"type": "object", "properties":
        {"size": {"type": "integer"}, "name": {"type": "string"}}},
      "lines": {"type": "array", "items": {"type": "integer"}},
      "maybe": {"type": ["string", "null"]}}}}},
    {"type": "function", "function": {"name": "free"}}])");
}

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};
struct Outcome {
  std::string content;
  std::vector<Call> calls;
  bool operator==(const Outcome&) const = default;
};

Outcome gather(const std::vector<std::string>& pieces, bool enabled = true, bool first = false) {
  ToolParser parser(ToolSchemas::from(tools()), enabled, first);
  Outcome outcome;
  const auto take = [&](const std::vector<ToolEvent>& events) {
    for (const ToolEvent& event : events) {
      if (event.kind == ToolEvent::Kind::kContent) {
        outcome.content += event.text;
      } else if (event.kind == ToolEvent::Kind::kStart) {
        EXPECT_EQ(event.call, static_cast<std::int64_t>(outcome.calls.size()));
        outcome.calls.push_back({event.text, ""});
      } else {
        ASSERT_EQ(event.call + 1, static_cast<std::int64_t>(outcome.calls.size()));
        outcome.calls.back().arguments += event.text;
      }
    }
  };
  for (const std::string& piece : pieces) take(parser.push(piece));
  take(parser.finish());
  return outcome;
}

std::string parameter(const std::string& name, const std::string& value) {
  return kM + "<" + name + ">" + value + kM + "</" + name + ">";
}
std::string invoke(const std::string& name, const std::string& inside) {
  return kM + "<invoke name=\"" + name + "\">" + inside + kM + "</invoke>\n";
}
std::string block(const std::string& inside) {
  return kM + "<tool_call>\n" + inside + kM + "</tool_call>";
}

ordered_json arguments(const std::string& inside, const std::string& tool = "write_file") {
  const Outcome outcome = gather({block(invoke(tool, inside))});
  EXPECT_EQ(outcome.calls.size(), 1U);
  if (outcome.calls.empty()) return {};
  return ordered_json::parse(outcome.calls[0].arguments, nullptr, false);
}

TEST(ToolParser, Conformance9_StringIntegerNestedAndTwoCalls) {
  const std::string text =
      "Saving.\n" +
      block(invoke("write_file",
                   parameter("path", "a.txt") + parameter("mode", "420") +
                       parameter("meta", parameter("size", "3") + parameter("name", "007"))) +
            invoke("free", "")) +
      "\n";
  const Outcome outcome = gather({text});
  EXPECT_EQ(outcome.content, "Saving.");
  ASSERT_EQ(outcome.calls.size(), 2U);
  EXPECT_EQ(
      ordered_json::parse(outcome.calls[0].arguments),
      ordered_json::parse(R"({"path": "a.txt", "mode": 420, "meta": {"size": 3, "name": "007"}})"));
  EXPECT_EQ(outcome.calls[1], (Call{"free", "{}"}));
}

TEST(ToolParser, FaultE31_Vllm44060_TagLikeTextInAValueIsItsText) {
  for (const std::string value : {"<parameter>\n <hello/>\n</parameter>", "a]<]minimax[>[b",
                                  "]<]minimax[>[</other>", "\"\\\n", "</content>", ""}) {
    EXPECT_EQ(arguments(parameter("content", value))["content"], value) << value;
  }
}

TEST(ToolParser, ValuesFollowTheSchema) {
  const std::map<std::string, std::pair<std::string, ordered_json>> cases = {
      {"mode", {" 12 ", 12}},        {"ratio", {"1.50", 1.5}},     {"force", {"True", true}},
      {"lines", {"[1, 2]", {1, 2}}}, {"maybe", {"null", nullptr}}, {"path", {"0012\n", "0012\n"}},
      {"unknown", {"12", "12"}},
  };
  for (const auto& [name, value] : cases)
    EXPECT_EQ(arguments(parameter(name, value.first))[name], value.second) << name;
  EXPECT_EQ(arguments(parameter("mode", "twelve"))["mode"], "twelve");
  EXPECT_EQ(arguments(parameter("lines", parameter("item", "1") + parameter("item", "2")))["lines"],
            (ordered_json{1, 2}));
  EXPECT_EQ(arguments(parameter("x", "12"), "free")["x"], 12);
  EXPECT_EQ(arguments(parameter("x", "plain"), "free")["x"], "plain");
  EXPECT_EQ(arguments(parameter("x", parameter("a", "1") + parameter("a", "2")), "free")["x"],
            ordered_json::parse(R"({"a": [1, 2]})"));
  EXPECT_EQ(arguments(parameter("x", parameter("x", "1")), "free")["x"],
            ordered_json::parse(R"({"x": 1})"));
}

TEST(ToolParser, FaultE34_LlamaCpp24523_CutOffAnywhereTheArgumentsAreJson) {
  const std::string text =
      block(invoke("write_file", parameter("path", "a.txt") + parameter("mode", "420") +
                                     parameter("content", "x]y\"z")));
  for (std::size_t n = 0; n <= text.size(); ++n) {
    const Outcome outcome = gather({text.substr(0, n)});
    EXPECT_EQ(outcome.content.find(kM), std::string::npos);
    for (const Call& call : outcome.calls)
      EXPECT_TRUE(ordered_json::accept(call.arguments)) << n << " " << call.arguments;
  }
}

TEST(ToolParser, FaultE32_Vllm39649_LongStringsArriveAsTheyAreMade) {
  ToolParser parser(ToolSchemas::from(tools()), true, false);
  parser.push(kM + "<tool_call>\n" + kM + "<invoke name=\"write_file\">" + kM + "<content>");
  for (int i = 0; i < 4000; ++i) {
    const auto events = parser.push("word ");
    ASSERT_EQ(events.size(), 1U);
    ASSERT_EQ(events[0].text, "word ");
  }
}

TEST(ToolParser, RecoversFromWhatModelsGetWrong) {
  // No closing tags at all; no opening tag of the first parameter; tags without their mark; a
  // second call without the end of the first.
  EXPECT_EQ(gather({kM + "<tool_call>\n" + kM + "<invoke name=\"free\">"}).calls,
            (std::vector<Call>{{"free", "{}"}}));
  EXPECT_EQ(arguments(kM + "a.txt" + kM + "</path>")["path"], "a.txt");
  EXPECT_EQ(gather({kM + "<tool_call><invoke name=\"free\"></invoke></tool_call>done"}),
            (Outcome{"done", {{"free", "{}"}}}));
  EXPECT_EQ(gather({kM + "<tool_call>" + kM + "<invoke name=\"free\">" + kM +
                    "<invoke name=\"free\">" + kM + "</invoke>" + kM + "</tool_call>"})
                .calls.size(),
            2U);
  EXPECT_EQ(gather({block("lost words " + invoke("free", ""))}).content, "lost words");
  EXPECT_EQ(gather({"a " + kM + "b"}).content, "a b");
}

TEST(ToolParser, WithoutToolsNothingIsACallAndNoMarkIsSeen) {
  const Outcome outcome = gather({"x " + block(invoke("free", ""))}, false);
  EXPECT_TRUE(outcome.calls.empty());
  EXPECT_EQ(outcome.content.find(kM), std::string::npos);
  EXPECT_NE(outcome.content.find("<invoke name=\"free\">"), std::string::npos);
}

TEST(ToolParser, OnlyTheFirstCallIfAskedFor) {
  const Outcome outcome = gather(
      {block(invoke("free", "") + invoke("write_file", parameter("path", "b")))}, true, true);
  EXPECT_EQ(outcome.calls, (std::vector<Call>{{"free", "{}"}}));
}

// Random sentences of the grammar's own pieces, cut at random: the same result as in one piece.
TEST(ToolParser, FaultE30_Vllm46042_AnyCutGivesTheResultOfTheWhole) {
  std::mt19937 random(11);
  const std::vector<std::string> words = {kM,
                                          "<tool_call>",
                                          "</tool_call>",
                                          "<invoke name=\"free\">",
                                          "<invoke name=\"write_file\">",
                                          "</invoke>",
                                          "<path>",
                                          "</path>",
                                          "<meta>",
                                          "</meta>",
                                          "<mode>",
                                          "</mode>",
                                          "<item>",
                                          "</item>",
                                          "text",
                                          " ",
                                          "\n",
                                          "]",
                                          "<",
                                          "12",
                                          "\"",
                                          "]<]mini",
                                          "{}",
                                          "é",
                                          "<mm:think>",
                                          "</mm:think>"};
  for (int round = 0; round < 30000; ++round) {
    std::string text;
    const std::size_t count = random() % 24;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string& word = words[random() % words.size()];
      if (word[0] == '<' && random() % 4 != 0) text += kM;
      text += word;
    }
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t n = 1 + random() % 6;
      while (at + n < text.size() && (static_cast<unsigned char>(text[at + n]) & 0xc0U) == 0x80U)
        ++n;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    const Outcome whole = gather({text});
    ASSERT_EQ(gather(pieces).content, whole.content) << text;
    ASSERT_EQ(gather(pieces).calls, whole.calls) << text;
    ASSERT_EQ(whole.content.find(kM), std::string::npos) << text;
    for (const Call& call : whole.calls)
      ASSERT_TRUE(ordered_json::accept(call.arguments)) << text << "\n" << call.arguments;
  }
}

TEST(ToolParser, WorkIsLinearInTheText) {
  const auto seconds = [](std::size_t n) {
    ToolParser parser(ToolSchemas::from(tools()), true, false);
    const auto start = std::chrono::steady_clock::now();
    parser.push(kM + "<tool_call>" + kM + "<invoke name=\"write_file\">" + kM + "<meta>");
    for (std::size_t i = 0; i < n; ++i) parser.push("]<]minimax[>[<meta");
    parser.finish();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds(1000);
  // Quadratic work would be 100 times as much.
  EXPECT_LT(seconds(40000), 40 * seconds(4000) + 0.2);
}

// The JSON library takes a NUL byte for the end of its input: what lies behind it is no number.
TEST(ToolParser, NulDoesNotEndANumber) {
  const std::string value("0\0\0\0006", 5);
  const Outcome out =
      gather({kM + "<tool_call>\n" + kM + "<invoke name=\"write_file\">" + kM + "<mode>" + value +
              kM + "</mode>" + kM + "</invoke>\n" + kM + "</tool_call>"});
  ASSERT_EQ(out.calls.size(), 1U);
  ASSERT_TRUE(ordered_json::accept(out.calls[0].arguments)) << out.calls[0].arguments;
  EXPECT_EQ(ordered_json::parse(out.calls[0].arguments)["mode"], ordered_json(value));
}

}  // namespace
}  // namespace monolayer::server

#include "text/reasoning.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace monolayer {
namespace {

struct Case {
  ThinkingMode mode;
  std::string text;
  std::string reasoning;
  std::string content;
};

constexpr ThinkingMode kOn = ThinkingMode::kEnabled;
constexpr ThinkingMode kOff = ThinkingMode::kDisabled;
constexpr ThinkingMode kAuto = ThinkingMode::kAdaptive;

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {kOn, "", "", ""},
      {kOn, "why</mm:think>so", "why", "so"},
      {kOn, "why", "why", ""},
      {kOn, "why</mm:thin", "why</mm:thin", ""},
      {kOn, "</mm:think>so", "", "so"},
      {kOn, "<mm:think>why</mm:think>so", "why", "so"},
      {kOn, "a <mm:think> b</mm:think>c", "a <mm:think> b", "c"},
      {kOn, "  indented</mm:think>\n\nso", "  indented", "\n\nso"},
      {kOn, "why</mm:think></mm:think>so", "why", "so"},
      {kOn, "why</mm:think>\n</mm:think>so", "why", "so"},
      {kOn, "why</mm:think>so</mm:think>on", "why", "so</mm:think>on"},
      {kOn, "why</mm:think>so<mm:think>x</mm:think>", "why", "so<mm:think>x</mm:think>"},
      {kOn, "why</think>more</mm:think>so", "why</think>more", "so"},
      {kOn, "why]<]minimax[>[<tool_call>\ncall", "why", "]<]minimax[>[<tool_call>\ncall"},
      {kOn, "why]<]minimax[>[<other", "why]<]minimax[>[<other", ""},
      {kOn, "why</mm:think>]<]minimax[>[<tool_call>", "why", "]<]minimax[>[<tool_call>"},
      {kOff, "so", "", "so"},
      {kOff, "</mm:think>so", "", "so"},
      {kOff, "<mm:think>so", "", "<mm:think>so"},
      {kOff, "so</mm:think>", "", "so</mm:think>"},
      {kOff, " \n so", "", " \n so"},
      {kOff, "</mm:thin", "", "</mm:thin"},
      {kAuto, "", "", ""},
      {kAuto, "so", "", "so"},
      {kAuto, "  so", "", "  so"},
      {kAuto, "<mm:think>why</mm:think>so", "why", "so"},
      {kAuto, "\n<mm:think>why</mm:think>so", "why", "so"},
      {kAuto, "</mm:think>so", "", "so"},
      {kAuto, "</mm:think></mm:think>so", "", "so"},
      {kAuto, "</mm:think><mm:think>x</mm:think>", "", "<mm:think>x</mm:think>"},
      {kAuto, "<think>why</think>so", "why", "so"},
      {kAuto, "<think>a</mm:think>b</think>so", "a</mm:think>b", "so"},
      {kAuto, "<mm", "", "<mm"},
      {kAuto, "<mm:thinker>so", "", "<mm:thinker>so"},
      {kAuto, " <", "", " <"},
      {kAuto, "so <mm:think>x</mm:think>", "", "so <mm:think>x</mm:think>"},
      {kAuto, "<mm:think>日本</mm:think>語", "日本", "語"},
  };
  return kCases;
}

ReasoningDelta in_pieces(const Case& c, const std::vector<std::size_t>& cuts) {
  ReasoningParser parser(c.mode);
  ReasoningDelta whole;
  const auto add = [&](const ReasoningDelta& delta) {
    whole.reasoning += delta.reasoning;
    whole.content += delta.content;
  };
  std::size_t at = 0;
  for (const std::size_t cut : cuts) {
    add(parser.push(std::string_view(c.text).substr(at, cut - at)));
    at = cut;
  }
  add(parser.push(std::string_view(c.text).substr(at)));
  add(parser.finish());
  return whole;
}

TEST(Reasoning, SplitsWholeText) {
  for (const Case& c : cases()) {
    const ReasoningDelta split = split_reasoning(c.text, c.mode);
    EXPECT_EQ(split.reasoning, c.reasoning) << c.text;
    EXPECT_EQ(split.content, c.content) << c.text;
  }
}

TEST(Reasoning, AnyCutOfTheTextGivesTheSame) {
  for (const Case& c : cases()) {
    std::vector<std::size_t> every;
    for (std::size_t i = 1; i < c.text.size(); ++i) every.push_back(i);
    std::vector<std::vector<std::size_t>> all = {every};
    for (std::size_t i = 0; i <= c.text.size(); ++i) {
      for (std::size_t j = i; j <= c.text.size(); ++j) all.push_back({i, j});
    }
    for (const auto& cuts : all) {
      const ReasoningDelta split = in_pieces(c, cuts);
      ASSERT_EQ(split.reasoning, c.reasoning) << c.text;
      ASSERT_EQ(split.content, c.content) << c.text;
    }
  }
}

// Random texts made of marks, their beginnings and other text.
TEST(Reasoning, RandomTextsAndCuts) {
  std::mt19937 random(7);
  const std::vector<std::string> parts = {"<mm:think>",
                                          "</mm:think>",
                                          "<think>",
                                          "</think>",
                                          "<mm:",
                                          "</mm:think",
                                          "]<]minimax[>[",
                                          "]<]minimax[>[<tool_call>",
                                          "<",
                                          "]",
                                          " ",
                                          "\n",
                                          "word",
                                          "é"};
  for (int round = 0; round < 20000; ++round) {
    Case c{static_cast<ThinkingMode>(random() % 3), "", "", ""};
    for (std::size_t n = random() % 8; n > 0; --n) c.text += parts[random() % parts.size()];
    const ReasoningDelta whole = split_reasoning(c.text, c.mode);
    std::vector<std::size_t> cuts;
    for (std::size_t i = 0; i < c.text.size(); ++i) {
      if (random() % 3 == 0) cuts.push_back(i);
    }
    const ReasoningDelta split = in_pieces(c, cuts);
    ASSERT_EQ(split.reasoning, whole.reasoning) << c.text;
    ASSERT_EQ(split.content, whole.content) << c.text;
  }
}

// Nothing is held back that cannot become a mark.
TEST(Reasoning, StreamsWithoutDelay) {
  ReasoningParser parser(kOn);
  EXPECT_TRUE(parser.in_reasoning() || parser.push("a").reasoning == "a");
  EXPECT_EQ(parser.push("b < c").reasoning, "b < c");
  EXPECT_EQ(parser.push(" </mm:").reasoning, " ");
  EXPECT_EQ(parser.push("x").reasoning, "</mm:x");
  EXPECT_TRUE(parser.push("</mm:think>").empty());
  EXPECT_EQ(parser.push("so <mm:th").content, "so <mm:th");
  EXPECT_TRUE(parser.finish().empty());
}

TEST(Reasoning, ModeNames) {
  EXPECT_EQ(thinking_mode("enabled"), kOn);
  EXPECT_EQ(thinking_mode("disabled"), kOff);
  EXPECT_EQ(thinking_mode("adaptive"), kAuto);
  EXPECT_EQ(thinking_mode("anything"), kAuto);
}

}  // namespace
}  // namespace monolayer

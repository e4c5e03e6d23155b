#include "engine/stop_matcher.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace monolayer::engine {
namespace {

struct Outcome {
  std::string text;
  std::string matched;
  bool operator==(const Outcome&) const = default;
};

Outcome streamed(const std::vector<std::string>& pieces, const std::vector<std::string>& stops,
                 bool include = false) {
  StopMatcher matcher(stops, include);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += matcher.push(piece);
  outcome.text += matcher.finish();
  outcome.matched = matcher.matched().value_or("");
  return outcome;
}

// By definition: the first place where some stop string ends, the longest there.
Outcome brute(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops)
      if (stop.size() > best.size() && stop.size() <= end &&
          text.compare(end - stop.size(), stop.size(), stop) == 0)
        best = stop;
    if (!best.empty()) return {text.substr(0, include ? end : end - best.size()), best};
  }
  return {text, ""};
}

TEST(StopMatcher, FindsAStopThatCrossesPieces) {
  // vLLM #45636
  EXPECT_EQ(streamed({"a,", "b", ",c", "d"}, {"b,c"}), (Outcome{"a,", "b,c"}));
  EXPECT_EQ(streamed({"a,", "b", ",c", "d"}, {"b,c"}, true), (Outcome{"a,b,c", "b,c"}));
}

TEST(StopMatcher, HoldsBackOnlyWhatMayStillMatch) {
  StopMatcher matcher({"stop"}, false);
  EXPECT_EQ(matcher.push("go st"), "go ");
  EXPECT_EQ(matcher.push("and"), "stand");
  EXPECT_EQ(matcher.push("sto"), "");
  EXPECT_EQ(matcher.finish(), "sto");
}

TEST(StopMatcher, PassesOverMatchesUntilArmed) {
  StopMatcher matcher({"xx"}, false);
  std::string text = matcher.push("axxb", false);
  EXPECT_FALSE(matcher.matched());
  text += matcher.push("cxxd", true);
  EXPECT_EQ(text, "axxbc");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.push("more"), "");
}

TEST(StopMatcher, AgreesWithTheDefinitionForAnyCut) {
  std::mt19937 random(5);
  const auto word = [&](std::size_t most) {
    std::string text(1 + random() % most, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int i = 0; i < 20000; ++i) {
    const std::string text = word(30);
    std::vector<std::string> stops(random() % 6);
    for (std::string& stop : stops) stop = word(9);
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = 1 + random() % 4;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    const bool include = random() % 2 == 0;
    ASSERT_EQ(streamed(pieces, stops, include), brute(text, stops, include)) << text;
  }
}

}  // namespace
}  // namespace monolayer::engine

#include "text/tokenizer_regex.h"

#include <gtest/gtest.h>

#include <vector>

#include "text/utf8.h"

namespace monolayer {
namespace {

std::vector<std::string> matches(const std::string& pattern, std::string_view text) {
  const auto regex = Regex::oniguruma(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().to_string();
  std::vector<std::string> found;
  RegexScratch scratch;
  for (std::size_t at = 0; regex.ok() && at <= text.size();) {
    const auto match = regex->find(text, at, scratch);
    EXPECT_TRUE(match.ok()) << match.status().to_string();
    if (!match.ok() || !match->found) break;
    found.emplace_back(text.substr(match->begin, match->end - match->begin));
    at = match->end > match->begin ? match->end : match->end + 1;
  }
  return found;
}

using List = std::vector<std::string>;
using List2 = std::vector<std::pair<std::string, std::string>>;

TEST(TokenizerRegex, MeansWhatItMeansInOniguruma) {
  // U+180E is no white space, U+0085 and U+3000 are.
  EXPECT_EQ(matches(R"(\s+)", "a\u180E\u0085\u3000b"), (List{"\u0085\u3000"}));
  EXPECT_EQ(matches(R"(\v)", "\n\v"), (List{"\v"}));  // not any vertical space
  EXPECT_EQ(matches("^.$", "a\nb\n"), (List{"a", "b"}));
  EXPECT_EQ(matches(R"((?i:'s))", "'s'S'\u017F"), (List{"'s", "'S", "'\u017F"}));
  EXPECT_EQ(matches(R"((?i:k)k)", "\u212Ak Kk kK"), (List{"\u212Ak", "Kk"}));
  EXPECT_EQ(matches(R"(\p{Han}+)", "日本、の"), (List{"日本"}));  // not script extensions
  EXPECT_EQ(matches(R"([^\s\p{L}-]+)", "a-b+1 "), (List{"+1"}));
  EXPECT_EQ(matches(R"([\]\-a#])", "]x-#"), (List{"]", "-", "#"}));
  EXPECT_EQ(matches(R"([a-c\x{1F642}\u00e9])", "c🙂éd"), (List{"c", "🙂", "é"}));
  EXPECT_EQ(matches(R"((a)(?=b)|(?<!x)c)", "abxcc"), (List{"a", "c"}));
}

TEST(TokenizerRegex, KnowsUnicode16) {
  // New in Unicode 15 and 16: a Kawi letter, a Garay capital and small letter and digit, a mark.
  for (const auto& [pattern, text] : List2{{R"(\p{L})", "\U00011F12"},
                                           {R"(\p{Lu})", "\U00010D50"},
                                           {R"(\p{Ll})", "\U00010D70"},
                                           {R"([\p{Nd}])", "\U00010D40"},
                                           {R"(\p{M})", "\u0897"},
                                           {R"(\w)", "\U00010D70"},
                                           {R"(\p{Han})", "\U0002EBF0"}}) {
    EXPECT_EQ(matches(pattern, text), (List{text})) << pattern;
  }
  EXPECT_EQ(matches(R"(\P{L})", "\U00011F12"), List{});
  EXPECT_EQ(matches(R"([^\s\p{L}])", "\U00011F12"), List{});
}

TEST(TokenizerRegex, RefusesWhatDiffersByName) {
  for (const char* pattern : {R"(\h)",
                              R"(\R)",
                              R"(\X)",
                              R"(\K)",
                              R"(\b)",
                              R"(\G)",
                              R"(\1)",
                              R"(\x80)",
                              R"(\x{110000})",
                              R"(\x{D800})",
                              "a{2}?",
                              "a{1,2}+",
                              "a{,3}",
                              "a{x",
                              "(?i)a",
                              "(?m:a)",
                              "(?<n>a)",
                              "(?#x)",
                              "(*F)",
                              "[[:alpha:]]",
                              "[a&&b]",
                              "[]a]",
                              "[^]",
                              "[z-a]",
                              R"([\s-a])",
                              R"([\W])",
                              R"([\P{L}])",
                              R"(\p{Mn})",
                              R"(\p{Cn})",
                              R"(\p{Alpha})",
                              R"(\pL)",
                              R"((?i:\p{L}))",
                              "(?i:é)",
                              "(?i:ss)",
                              "(?i:s{2})",
                              "^*",
                              "(?=a)+",
                              "*",
                              "a|*",
                              "a)",
                              "(a",
                              "[a",
                              "\\",
                              "a**",
                              R"([a-z-9])"}) {
    const auto result = Regex::oniguruma(pattern);
    EXPECT_FALSE(result.ok()) << pattern;
    EXPECT_NE(result.status().to_string().find("pattern: "), std::string::npos);
  }
  EXPECT_FALSE(Regex::oniguruma(std::string(1000, '(') + std::string(1000, ')')).ok());
  EXPECT_FALSE(Regex::oniguruma(std::string(100000, 'a')).ok());
}

TEST(TokenizerRegex, LiteralTextIsNoPattern) {
  const auto regex = Regex::literal("a.*\n[é");
  ASSERT_TRUE(regex.ok()) << regex.status().to_string();
  RegexScratch scratch;
  const auto match = regex->find("xa.*\n[éb", 0, scratch);
  ASSERT_TRUE(match.ok());
  EXPECT_TRUE(match->found);
  EXPECT_EQ(match->begin, 1U);
  EXPECT_EQ(match->end, 8U);
}

TEST(TokenizerRegex, DeepBacktrackingFallsBackToTheHeap) {
  const auto regex = Regex::oniguruma("(?:a|b)*c");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch;
  const std::string text = std::string(100000, 'a') + "c";
  const auto match = regex->find(text, 0, scratch);
  ASSERT_TRUE(match.ok()) << match.status().to_string();
  EXPECT_EQ(match->end, text.size());
}

}  // namespace
}  // namespace monolayer

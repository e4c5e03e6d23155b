#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "text/tokenizer_fixture.h"

namespace monolayer {
namespace {

using nlohmann::json;
using testing::added_token;
using testing::byte_level_file;
using testing::symbol;
using Ids = std::vector<std::int32_t>;

Tokenizer make(const json& file) {
  auto tokenizer = Tokenizer::parse(file.dump(), "test.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
  auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().to_string();
  return ids.ok() ? std::move(ids).value() : Ids{};
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  // 256 "bc", 257 "ab", 258 "aa", 259 "abc".
  const Tokenizer t = make(byte_level_file({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"ab", "c"}}));
  EXPECT_EQ(encode(t, "abc"), (Ids{'a', 256}));
  EXPECT_EQ(encode(t, "abd"), (Ids{257, 'd'}));
  EXPECT_EQ(encode(t, "aaa"), (Ids{258, 'a'}));
  EXPECT_EQ(encode(t, "aab"), (Ids{'a', 257}));
  EXPECT_EQ(encode(t, ""), Ids{});
  EXPECT_EQ(t.vocab_size(), 260);
}

// Merges one pair at a time by a search through the whole list of merges.
Ids merge_slowly(const std::vector<std::pair<std::string, std::string>>& merges,
                 const std::string& text) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t m = 0; m < merges.size() && !changed; ++m) {
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        if (parts[i] != merges[m].first || parts[i + 1] != merges[m].second) continue;
        parts[i] += parts[i + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        changed = true;
        break;
      }
    }
  }
  Ids ids;
  for (const std::string& part : parts) {
    if (part.size() == 1) {
      ids.push_back(static_cast<unsigned char>(part[0]));
      continue;
    }
    for (std::size_t m = 0; m < merges.size(); ++m) {
      if (merges[m].first + merges[m].second == part) {
        ids.push_back(256 + static_cast<std::int32_t>(m));
        break;
      }
    }
  }
  return ids;
}

TEST(Tokenizer, LongAndShortPiecesMergeAsTheDefinitionSays) {
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"b", "a"},  {"a", "b"},   {"ab", "ab"}, {"c", "c"},   {"a", "a"},
      {"ba", "c"}, {"aa", "ab"}, {"cc", "cc"}, {"abab", "c"}};
  const Tokenizer t = make(byte_level_file(merges));
  std::uint64_t random = 1;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto length = (random >> 33) % 120;
    for (std::uint64_t i = 0; i < length; ++i) {
      random = random * 6364136223846793005ULL + 1442695040888963407ULL;
      text += static_cast<char>('a' + (random >> 33) % 3);
    }
    ASSERT_EQ(encode(t, text), merge_slowly(merges, text)) << text;
  }
}

TEST(Tokenizer, AMegabyteInOnePieceTakesNoQuadraticTime) {
  const Tokenizer t = make(byte_level_file({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}}));
  const std::string text(1 << 20, 'a');
  const Ids ids = encode(t, text);
  EXPECT_EQ(ids, Ids(text.size() / 8, 258));
}

TEST(Tokenizer, ControlTokensInTextStayTextUnlessAsked) {
  json file = byte_level_file();
  file["added_tokens"] = {added_token(256, "<s>"), added_token(257, "<s>>", false)};
  const Tokenizer t = make(file);
  EXPECT_EQ(encode(t, "<s>"), (Ids{'<', 's', '>'}));
  EXPECT_EQ(encode(t, "a<s>b", {true, {}}), (Ids{'a', 256, 'b'}));
  // The longest of those that begin leftmost.
  EXPECT_EQ(encode(t, "<<s>>", {true, {}}), (Ids{'<', 257}));
  EXPECT_EQ(t.decode(Ids{'a', 256, 257}), "a<s><s>>");
  EXPECT_EQ(t.decode(Ids{'a', 256, 257}, true), "a<s>>");
  EXPECT_TRUE(t.is_special(256));
  EXPECT_FALSE(t.is_special(257));
  EXPECT_EQ(t.added_tokens().size(), 2U);
}

TEST(Tokenizer, LiteralSpansKeepControlTokensText) {
  json file = byte_level_file({{"\n", "\n"}});
  file["added_tokens"] = {added_token(257, "<s>")};
  file["added_tokens"][0]["lstrip"] = true;
  const Tokenizer t = make(file);
  const std::string text = "<s>\n\n<s> <s>";
  const std::vector<TextSpan> user = {{4, 8}};
  // The words go across the border; only the token inside the span stays text, and the white space
  // beside the last one is outside the span.
  EXPECT_EQ(encode(t, text, {true, user}), (Ids{257, 256, '<', 's', '>', 257}));
  // A token that only touches a span is not seen, nor is white space in it taken.
  const std::vector<TextSpan> touching = {{2, 4}};
  EXPECT_EQ(encode(t, "<s> <s>", {true, touching}), (Ids{'<', 's', '>', ' ', 257}));
  // Offsets are of the text as given, also when it is broken.
  const std::vector<TextSpan> broken = {{1, 5}};
  EXPECT_EQ(encode(t, "\xFF<s>\xC3<s>", {true, broken}),
            (Ids{0xEF, 0xBF, 0xBD, '<', 's', '>', 0xEF, 0xBF, 0xBD, 257}));
  const std::vector<TextSpan> outside = {{1, 99}};
  EXPECT_EQ(t.encode("abc", {true, outside}).status().code(), Code::kInvalidArgument);
  const std::vector<TextSpan> overlapping = {{0, 2}, {1, 3}};
  EXPECT_EQ(t.encode("abc", {true, overlapping}).status().code(), Code::kInvalidArgument);
}

TEST(Tokenizer, BrokenUtf8IsEncodedAsReplacementCharacters) {
  const Tokenizer t = make(byte_level_file());
  const auto replaced = [&](std::string_view text) { return t.decode(encode(t, text)); };
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(replaced("a\xFF"
                     "b"),
            "a" + r + "b");
  EXPECT_EQ(replaced("\xC3"), r);
  EXPECT_EQ(replaced("\xE2\x82"), r);  // one truncated sequence
  EXPECT_EQ(replaced("\xE2\x82\x41"), r + "A");
  EXPECT_EQ(replaced("\xC0\x80"), r + r);          // overlong: no sequence begins so
  EXPECT_EQ(replaced("\xED\xA0\x80"), r + r + r);  // a surrogate
  EXPECT_EQ(replaced("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(replaced("\xF0\x9F\x99\x82"), "\xF0\x9F\x99\x82");
}

TEST(Tokenizer, UnknownIdsDecodeToNothing) {
  const Tokenizer t = make(byte_level_file());
  EXPECT_EQ(t.decode(Ids{'a', -1, 256, 1 << 30, 'b'}), "ab");
  EXPECT_FALSE(t.has_id(256));
  EXPECT_TRUE(t.token_bytes(-5).empty());
  EXPECT_EQ(t.token_bytes(0xE9), "\xE9");
  EXPECT_EQ(t.id_of(symbol(' ')), 32);
  EXPECT_FALSE(t.id_of(" ").has_value());
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const Tokenizer t = make(byte_level_file({{"a", "b"}}, "a+b|."));
  std::vector<std::thread> threads;
  std::array<bool, 4> same{};
  for (std::size_t i = 0; i < same.size(); ++i) {
    threads.emplace_back([&t, &same, i] {
      bool ok = true;
      for (int round = 0; round < 200; ++round) {
        const auto ids = t.encode("aab ab");
        ok = ok && ids.ok() && *ids == Ids{'a', 256, ' ', 256};
      }
      same[i] = ok;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool ok : same) EXPECT_TRUE(ok);
}

TEST(Tokenizer, LoadsAFileOrItsFolder) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tokenizer_test";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(Tokenizer::load(folder).status().code(), Code::kNotFound);
  std::ofstream(folder / "tokenizer.json") << byte_level_file().dump();
  EXPECT_TRUE(Tokenizer::load(folder).ok());
  EXPECT_TRUE(Tokenizer::load(folder / "tokenizer.json").ok());
  std::ofstream(folder / "tokenizer.json") << "<!DOCTYPE html><html></html>";
  const Status html = Tokenizer::load(folder).status();
  EXPECT_EQ(html.code(), Code::kInvalidFile);
  EXPECT_NE(html.to_string().find("tokenizer.json: not valid JSON"), std::string::npos);
  std::ofstream(folder / "tokenizer.json", std::ios::trunc) << "";
  EXPECT_EQ(Tokenizer::load(folder).status().code(), Code::kInvalidFile);
  std::filesystem::remove_all(folder);
}

TEST(Tokenizer, NanoRoundTrips) {
  const auto t = Tokenizer::load(std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  const std::string text =
      "What is 17 + 25?\n\tďábelské 🙂 日本 👨‍👩‍👧 it's WE'LL]~b]user";
  EXPECT_EQ(t->decode(encode(*t, text)), text);
  EXPECT_EQ(t->decode(encode(*t, text, {true, {}})), text);
  ASSERT_TRUE(t->id_of("]~b]").has_value());
  EXPECT_EQ(encode(*t, "]~b]", {true, {}}), Ids{*t->id_of("]~b]")});
  EXPECT_GT(encode(*t, "]~b]").size(), 1U);
}

}  // namespace
}  // namespace monolayer

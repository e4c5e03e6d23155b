#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include "text/tokenizer_fixture.h"
#include "text/utf8.h"

namespace monolayer {
namespace {

using testing::added_token;
using testing::byte_level_file;
using Ids = std::vector<std::int32_t>;

Tokenizer make(const nlohmann::json& file) {
  auto tokenizer = Tokenizer::parse(file.dump(), "test.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

// Streams the ids; checks each part and the whole.
void check(const Tokenizer& t, const Ids& ids) {
  for (const bool skip : {false, true}) {
    StreamDecoder decoder(t, skip);
    std::string joined;
    for (const std::int32_t id : ids) {
      const std::string part = decoder.push(id);
      ASSERT_EQ(utf8::valid_prefix(part), part.size()) << "a split character";
      joined += part;
    }
    const std::string last = decoder.finish();
    ASSERT_EQ(utf8::valid_prefix(last), last.size());
    ASSERT_EQ(joined + last, t.decode(ids, skip));
    ASSERT_EQ(decoder.finish(), "");
  }
}

// Fault 38: per-token decoding destroys emoji and CJK.
TEST(StreamDecoder, NeverSplitsACharacter) {
  const Tokenizer t = make(byte_level_file({{"\x99", "\x82"}, {"\xF0", "\x9F"}}));
  const std::string text = "ďábelské 🙂 日本 👨‍👩‍👧 e\u0301 🇨🇿";
  const auto ids = t.encode(text);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(t.decode(*ids), text);
  check(t, *ids);
  // A character appears with its last byte, not later.
  StreamDecoder decoder(t);
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(0x99), "");
  EXPECT_EQ(decoder.push(0x82), "🙂");
  EXPECT_EQ(decoder.push('a'), "a");
}

TEST(StreamDecoder, BrokenSequencesBecomeReplacementCharacters) {
  const Tokenizer t = make(byte_level_file());
  StreamDecoder decoder(t);
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push(0x82), "");
  EXPECT_EQ(decoder.push('a'), "\uFFFDa");
  EXPECT_EQ(decoder.push(0xFF), "\uFFFD");
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
}

TEST(StreamDecoder, RandomIdsEqualOneShotDecoding) {
  nlohmann::json file = byte_level_file({{"\xE2", "\x82"}, {"\x9F", "\x99"}, {"\xE2\x82", "\xAC"}});
  file["added_tokens"] = {added_token(300, "<s>"), added_token(301, "<t>", false)};
  const Tokenizer t = make(file);
  std::uint64_t random = 7;
  const auto next = [&random](std::uint64_t bound) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::int32_t>((random >> 33) % bound);
  };
  for (int round = 0; round < 5000; ++round) {
    Ids ids;
    const std::int32_t length = next(12);
    for (std::int32_t i = 0; i < length; ++i) {
      const std::int32_t kind = next(4);
      ids.push_back(kind == 0 ? next(310) : kind == 1 ? 256 + next(4) : 0x80 + next(0x80));
    }
    check(t, ids);
  }
}

}  // namespace
}  // namespace monolayer

// What a tokenizer.json may say, and what is refused with the field's name.
#include <gtest/gtest.h>

#include "text/tokenizer.h"
#include "text/tokenizer_fixture.h"

namespace monolayer {
namespace {

using nlohmann::json;
using testing::added_token;
using testing::byte_level_file;
using Ids = std::vector<std::int32_t>;

struct Refusal {
  const char* pointer;  // JSON pointer of what is set
  json value;           // discarded: erased
  Code code;
  const char* message;  // part of it
};

Status load_with(const Refusal& refusal) {
  json file = byte_level_file({{"a", "b"}});
  const json::json_pointer pointer(refusal.pointer);
  if (refusal.value.is_discarded()) {
    file[pointer.parent_pointer()].erase(pointer.back());
  } else {
    file[pointer] = refusal.value;
  }
  return Tokenizer::parse(file.dump(), "t.json").status();
}

TEST(TokenizerFile, EachRefusalNamesTheField) {
  const json erased(json::value_t::discarded);
  const Code invalid = Code::kInvalidFile;
  const Code unsupported = Code::kUnsupported;
  const std::vector<Refusal> refusals = {
      {"/model", erased, invalid, "model: not an object"},
      {"/model", json::array(), invalid, "model: not an object"},
      {"/model/type", "Unigram", unsupported, "model.type: \"Unigram\""},
      {"/model/vocab", erased, invalid, "model.vocab: missing"},
      {"/model/vocab", json::array(), invalid, "model.vocab: wrong type"},
      {"/model/vocab", json::object(), invalid, "no tokens"},
      {"/model/vocab/x", "1", invalid, "\"x\" has an id that is no integer"},
      {"/model/vocab/x", 1.5, invalid, "\"x\" has an id that is no integer"},
      {"/model/vocab/x", nullptr, invalid, "\"x\" has an id that is no integer"},
      {"/model/vocab/x", json::array({1}), invalid, "\"x\" has an id that is no integer"},
      {"/model/vocab/xy", -1, invalid, "\"xy\" has the id -1, ids are 0 to 2147483647"},
      {"/model/vocab/xy", 2147483648U, invalid, "\"xy\" has the id 2147483648"},
      {"/model/vocab/xy", 18446744073709551615U, invalid, "has the id 18446744073709551615"},
      {"/model/vocab/xy", 2147483647, invalid, "the id 2147483647 is too large for 258 tokens"},
      {"/model/vocab/xy", 256, invalid, "has the id 256, which another token has already"},
      {"/model/merges", erased, invalid, "model.merges: missing"},
      {"/model/merges", "a b", invalid, "model.merges: wrong type"},
      {"/model/merges/0", "ab", invalid, "model.merges[0]: \"ab\" is not two tokens"},
      {"/model/merges/0", "a b c", invalid, "model.merges[0]: \"a b c\" is not two tokens"},
      {"/model/merges/0", json::array({"a"}), invalid, "model.merges[0]: not a pair"},
      {"/model/merges/0", json::array({"a", "b", "c"}), invalid, "model.merges[0]: not a pair"},
      {"/model/merges/0", json::array({"a", 1}), invalid, "model.merges[0]: not a pair"},
      {"/model/merges/0", 7, invalid, "model.merges[0]: not a pair"},
      {"/model/merges/0", json::array({"zz", "b"}), invalid, "\"zz\" is not in model.vocab"},
      {"/model/merges/0", json::array({"b", "a"}), invalid, "\"ba\" is not in model.vocab"},
      {"/model/merges/1", json::array({"a", "b"}), invalid, "\"a\" and \"b\" stand twice"},
      {"/model/dropout", 0.1, unsupported, "model.dropout"},
      {"/model/unk_token", "<unk>", invalid, "model.unk_token: \"<unk>\" is not in model.vocab"},
      {"/model/unk_token", 5, invalid, "model.unk_token: not a string"},
      {"/model/continuing_subword_prefix", "##", unsupported, "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", unsupported, "end_of_word_suffix"},
      {"/model/ignore_merges", "yes", invalid, "model.ignore_merges: not true or false"},
      {"/truncation", json::object(), unsupported, "truncation"},
      {"/padding", json::object(), unsupported, "padding"},
      {"/normalizer", {{"type", "NFKC"}}, unsupported, "normalizer: type \"NFKC\""},
      {"/normalizer", "NFC", invalid, "normalizer: not an object"},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, unsupported, "pre_tokenizer: type \"Metaspace\""},
      {"/pre_tokenizer", nullptr, unsupported,
       "neither a ByteLevel pre_tokenizer nor byte_fallback"},
      {"/pre_tokenizer/add_prefix_space", true, unsupported, "add_prefix_space"},
      {"/decoder", nullptr, unsupported, "decoder: null"},
      {"/decoder", {{"type", "WordPiece"}}, unsupported, "decoder: \"WordPiece\""},
      {"/added_tokens", 3, invalid, "added_tokens: not a list"},
      {"/added_tokens", json::array({1}), invalid, "added_tokens[0]: not an object"},
      {"/added_tokens", {added_token(-1, "<s>")}, invalid, "added_tokens[0].id"},
      {"/added_tokens", {added_token(300000, "<s>")}, invalid, "the id 300000 is too large"},
      {"/added_tokens", {added_token(5, "<s>")}, invalid, "has the id 5, which another token has"},
      {"/added_tokens", {added_token(300, "ab")}, invalid, "\"ab\" has the id 300, and 256"},
      {"/added_tokens", {added_token(300, "")}, invalid, "added_tokens[0].content: 0 bytes"},
      {"/added_tokens", {added_token(300, std::string(1025, 'x'))}, invalid, "content: 1025 bytes"},
      {"/added_tokens",
       {added_token(300, "<s>"), added_token(301, "<s>")},
       invalid,
       "added_tokens[1]: \"<s>\" has the id 301, and 300"},
      {"/added_tokens",
       {added_token(300, "<s>"), added_token(300, "<s>")},
       invalid,
       "added_tokens[1]: \"<s>\" stands twice"},
      {"/added_tokens",
       {added_token(300, "<s>"), added_token(300, "<t>")},
       invalid,
       "added_tokens[1]: \"<t>\" has the id 300"},
      {"/added_tokens",
       {added_token(256, "ab")},
       unsupported,
       "the special token \"ab\" is also what ordinary text is encoded to"},
      {"/added_tokens", {added_token('a', "a")}, unsupported, "the special token \"a\" is also"},
  };
  for (const Refusal& refusal : refusals) {
    const Status status = load_with(refusal);
    EXPECT_EQ(status.code(), refusal.code) << refusal.pointer << ": " << status.to_string();
    EXPECT_EQ(status.to_string().find("t.json: "), 0U) << status.to_string();
    EXPECT_NE(status.to_string().find(refusal.message), std::string::npos)
        << refusal.message << " | " << status.to_string();
  }
}

std::string refusal_of(const std::string& text) {
  return Tokenizer::parse(text, "t.json").status().to_string();
}

TEST(TokenizerFile, BytesThatAreNoTokenizer) {
  EXPECT_EQ(refusal_of(""), "t.json: not valid JSON at byte 1");
  EXPECT_EQ(refusal_of("<html>"), "t.json: not valid JSON at byte 1");
  EXPECT_EQ(refusal_of(std::string("{}\0{", 4)), "t.json: is not valid JSON: NUL at byte 2");
  EXPECT_EQ(refusal_of("[]"), "t.json: not a JSON object");
  EXPECT_EQ(refusal_of("{\"a\": \"\xFF\"}"), "t.json: not valid JSON at byte 8");
  EXPECT_EQ(refusal_of(R"({"version": 1, "version": 1})"),
            "t.json: the key \"version\" stands twice in one object");
  EXPECT_EQ(refusal_of(std::string(100000, '[')), "t.json: nested deeper than 64 levels");
  const std::string file = byte_level_file().dump();
  for (std::size_t cut = 0; cut < file.size(); cut += 97) {
    EXPECT_FALSE(Tokenizer::parse(file.substr(0, cut), "t.json").ok()) << cut;
  }
}

TEST(TokenizerFile, AKeyOrATokenTwice) {
  std::string file = byte_level_file().dump();
  const auto at = file.find("\"vocab\":{") + 9;
  file.insert(at, "\"a\":300,");
  EXPECT_EQ(refusal_of(file), "t.json: model.vocab: the token \"a\" stands twice");
  std::string twice = byte_level_file().dump();
  twice.insert(twice.find("\"vocab\":{"), "\"vocab\":{},");
  EXPECT_EQ(refusal_of(twice), "t.json: the key \"vocab\" stands twice in one object");
}

TEST(TokenizerFile, MissingByteSymbol) {
  json file = byte_level_file();
  file["model"]["vocab"].erase("a");
  EXPECT_EQ(refusal_of(file.dump()), "t.json: model.vocab: no token for the byte 97, \"a\"");
  file["model"]["vocab"]["<unk>"] = 97;
  file["model"]["unk_token"] = "<unk>";
  const auto t = Tokenizer::parse(file.dump(), "t.json");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  EXPECT_EQ(*t->encode("aab"), (Ids{97, 97, 98}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(*Tokenizer::parse(file.dump(), "t.json")->encode("aab"), (Ids{97, 98}));
}

TEST(TokenizerFile, BothFormsOfMerges) {
  json file = byte_level_file({{"a", "b"}, {"ab", "c"}});
  file["model"]["merges"] = {"#version: 0.2", "a b", "ab c"};
  EXPECT_EQ(*Tokenizer::parse(file.dump(), "t.json")->encode("abcab"), (Ids{257, 256}));
}

TEST(TokenizerFile, IdsMayHaveHoles) {
  json file = byte_level_file();
  file["added_tokens"] = {added_token(1000, "<s>")};
  const auto t = Tokenizer::parse(file.dump(), "t.json");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  EXPECT_EQ(t->vocab_size(), 1001);
  EXPECT_FALSE(t->has_id(500));
  EXPECT_EQ(t->decode(Ids{500, 1000}), "<s>");
}

// A tokenizer over characters with <0xNN> tokens, and tokens that only look like them.
json byte_fallback_file() {
  json file = byte_level_file();
  file["pre_tokenizer"] = nullptr;
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
  file["model"]["byte_fallback"] = true;
  file["model"]["vocab"] = json::object();
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (std::size_t b = 0; b < 256; ++b) {
    const std::string name = std::string("<0x") + kHex[b / 16] + kHex[b % 16] + ">";
    file["model"]["vocab"][name] = b;
  }
  int next = 256;
  for (const char* token : {"a", "é", "<0x-1>", "<0xGG>", "<0x100>", "<0x+F>", "<0x1", "<0xé>"}) {
    file["model"]["vocab"][token] = next++;
  }
  return file;
}

TEST(TokenizerFile, ByteTokensAndTheirLookAlikes) {
  const auto t = Tokenizer::parse(byte_fallback_file().dump(), "t.json");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  EXPECT_EQ(*t->encode("aéb🙂"), (Ids{256, 257, 'b', 0xF0, 0x9F, 0x99, 0x82}));
  EXPECT_EQ(t->decode(Ids{256, 257, 'b', 0xF0, 0x9F, 0x99, 0x82}), "aéb🙂");
  // Plain text, whatever they look like: nothing is read before or after a table of 256 bytes.
  EXPECT_EQ(t->decode(Ids{258, 259, 260, 261, 262, 263}), "<0x-1><0xGG><0x100><0x+F><0x1<0xé>");
  EXPECT_EQ(t->token_bytes(258), "<0x-1>");
  EXPECT_EQ(t->token_bytes(0x41), "A");
  // A run of bytes that is no text is as many replacement characters as bytes.
  EXPECT_EQ(t->decode(Ids{0xF0, 0x9F, 'a'}), "\uFFFD\uFFFD\uFFFD");
  json file = byte_fallback_file();
  file["model"]["vocab"].erase("<0xFE>");
  EXPECT_EQ(refusal_of(file.dump()), "t.json: model.vocab: no token for the byte 254, \"<0xFE>\"");
}

TEST(TokenizerFile, AHostilePatternEndsInAnError) {
  const auto t = Tokenizer::parse(byte_level_file({}, "(?:x+x+)+y").dump(), "t.json");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  const Status status = t->encode(std::string(5000, 'x') + "zy").status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.to_string();
  // The tokenizer still works.
  EXPECT_TRUE(t->encode("abc").ok());
}

}  // namespace
}  // namespace monolayer

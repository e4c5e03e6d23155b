// Arbitrary prompts through tokenizers with M3's pattern: what is encoded comes back, broken UTF-8
// as U+FFFD, whether whole or streamed; no control token appears that was not asked for; spans keep
// control tokens text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/stream_decoder.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

std::string gpt2_symbol(unsigned byte) {
  static const std::string printable = [] {
    std::string out;
    for (int b = 0; b < 256; ++b) {
      const bool shown = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      out.push_back(static_cast<char>(shown));
    }
    return out;
  }();
  char32_t c = byte;
  if (printable[byte] == 0) {
    c = 256;
    for (unsigned b = 0; b < byte; ++b) c += printable[b] == 0 ? 1 : 0;
  }
  std::string out;
  monolayer::utf8::append_code_point(c, out);
  return out;
}

// Bytes, a few merges, a few added tokens.
monolayer::Tokenizer make() {
  std::string vocab;
  for (unsigned b = 0; b < 256; ++b) {
    const std::string s = gpt2_symbol(b);
    vocab += (b > 0 ? ",\"" : "\"") + std::string(s == "\"" || s == "\\" ? "\\" : "") + s +
             "\":" + std::to_string(b);
  }
  vocab += R"(,"aa":256,"ab":257,"aaaa":258,"ĠĠ":259)";
  const std::string json =
      R"({"added_tokens":[)"
      R"({"id":300,"content":"]~b]","special":true,"lstrip":false,"rstrip":false,"single_word":false,"normalized":false},)"
      R"({"id":301,"content":"[e~[","special":true,"lstrip":true,"rstrip":false,"single_word":false,"normalized":false},)"
      R"({"id":302,"content":"<t>","special":false,"lstrip":false,"rstrip":true,"single_word":true,"normalized":true}],)"
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
      R"("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},)"
      R"("behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)"
      R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","merges":["a a","a b","aa aa","Ġ Ġ"],"vocab":{)" +
      vocab + "}}}";
  auto tokenizer = monolayer::Tokenizer::parse(json, "fuzz.json");
  if (!tokenizer.ok()) {
    std::abort();
  }
  return std::move(tokenizer).value();
}

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const monolayer::Tokenizer tokenizer = make();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string expected;
  monolayer::utf8::append_lossy(text, expected);

  const auto plain = tokenizer.encode(text);
  require(plain.ok());
  require(tokenizer.decode(*plain) == expected);
  for (const std::int32_t id : *plain) require(id < 300);

  const auto special = tokenizer.encode(text, {true, {}});
  require(special.ok());
  monolayer::StreamDecoder decoder(tokenizer, true);
  std::string streamed;
  for (const std::int32_t id : *special) {
    const std::string part = decoder.push(id);
    require(monolayer::utf8::valid_prefix(part) == part.size());
    streamed += part;
  }
  require(streamed + decoder.finish() == tokenizer.decode(*special, true));

  // The whole text as a literal span is the text without added tokens.
  const monolayer::TextSpan whole[] = {{0, size}};
  const auto literal = tokenizer.encode(text, {true, whole});
  require(literal.ok() && *literal == *plain);
  if (size > 2) {
    const std::size_t middle = 1 + data[0] % (size - 1);
    const monolayer::TextSpan part[] = {{middle / 2, middle}};
    require(tokenizer.encode(text, {true, part}).ok());
  }
  return 0;
}

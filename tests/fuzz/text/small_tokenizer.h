// A small tokenizer for fuzz targets: M3's pattern, bytes, a few merges, a few added tokens.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace fuzz {

inline std::string gpt2_symbol(unsigned byte) {
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

// Ids 0 to 259 and 300 to 302.
inline monolayer::Tokenizer small_tokenizer() {
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

inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace fuzz

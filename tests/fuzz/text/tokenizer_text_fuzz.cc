// Arbitrary prompts through tokenizers with M3's pattern: what is encoded comes back, broken UTF-8
// as U+FFFD, whether whole or streamed; no control token appears that was not asked for; spans keep
// control tokens text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "small_tokenizer.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const monolayer::Tokenizer tokenizer = fuzz::small_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  using fuzz::require;
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

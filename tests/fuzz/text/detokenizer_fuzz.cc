// Arbitrary ids one by one: every piece is well-formed UTF-8, held-back bytes stay few, and the
// pieces together are what decoding all ids at once gives; ids that no token has are skipped the
// same way.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "small_tokenizer.h"
#include "text/stream_decoder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using fuzz::require;
  static const monolayer::Tokenizer tokenizer = fuzz::small_tokenizer();
  if (size == 0) return 0;
  const bool skip_special = data[0] % 2 != 0;
  std::vector<std::int32_t> ids;
  for (std::size_t i = 1; i + 1 < size; i += 2) {
    // Mostly bytes of characters, now and then merged, added, unknown or negative ids.
    const std::int32_t low = data[i];
    const std::int32_t high = data[i + 1] % 16;
    ids.push_back(high == 0 ? low + 256 : high == 1 ? -low : low);
  }
  monolayer::StreamDecoder decoder(tokenizer, skip_special);
  std::string streamed;
  for (const std::int32_t id : ids) {
    const std::string piece = decoder.push(id);
    require(monolayer::utf8::valid_prefix(piece) == piece.size());
    streamed += piece;
  }
  const std::string rest = decoder.finish();
  require(monolayer::utf8::valid_prefix(rest) == rest.size());
  require(streamed + rest == tokenizer.decode(ids, skip_special));
  return 0;
}

// Arbitrary tokenizer files: refused with one line, or usable.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/stream_decoder.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = monolayer::Tokenizer::parse(json, "fuzz.json");
  if (!tokenizer.ok()) {
    const std::string line = tokenizer.status().to_string();
    if (!line.starts_with("fuzz.json") || line.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  for (const std::string_view text :
       {std::string_view("ab aab  it's 123\n日本🙂\xFF<s> "), json.substr(0, 200)}) {
    for (const bool special : {false, true}) {
      const auto ids = tokenizer->encode(text, {special, {}});
      if (!ids.ok()) continue;
      monolayer::StreamDecoder decoder(*tokenizer);
      std::string streamed;
      for (const std::int32_t id : *ids) {
        if (!tokenizer->has_id(id)) std::abort();
        if (!special && tokenizer->is_special(id) && id != tokenizer->id_of("<unk>")) {
          // Only an unknown token may be special: everything else stays text.
          const auto unknown = json.find("unk_token");
          if (unknown == std::string_view::npos) std::abort();
        }
        streamed += decoder.push(id);
      }
      streamed += decoder.finish();
      if (streamed != tokenizer->decode(*ids)) std::abort();
    }
  }
  return 0;
}

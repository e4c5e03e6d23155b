// What every reader of JSON has to check before its library reads.
#pragma once

#include <string>
#include <string_view>

namespace monolayer {

// "NUL at byte N" if `text` holds one, else "". No JSON does, and the JSON library takes it for the
// end of its input: whatever lies behind it would pass unread.
inline std::string nul_in_json(std::string_view text) {
  const std::size_t at = text.find('\0');
  return at == std::string_view::npos ? std::string() : "NUL at byte " + std::to_string(at);
}

}  // namespace monolayer

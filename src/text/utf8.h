// UTF-8 as bytes: what is one character, what is a broken sequence, and what replaces it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace monolayer::utf8 {

// U+FFFD, the replacement character.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Kind : std::uint8_t {
  kCharacter,   // a complete character
  kInvalid,     // a maximal sequence that can't be the beginning of a character
  kIncomplete,  // the text ends inside what may still become a character
};

// One step through a text: a character, or one broken sequence.
struct Step {
  Kind kind;
  std::uint8_t length;  // bytes, 1 to 4
  char32_t code_point;  // only for kCharacter
};

// The step at `at`, which must be less than text.size(). A broken sequence is the longest prefix of
// some well-formed sequence (Unicode 3.9, "maximal subpart"), or one byte that can begin none: the
// division that Python's errors="replace" and Rust's from_utf8_lossy make.
Step step(std::string_view text, std::size_t at);

// Bytes of the longest well-formed prefix.
std::size_t valid_prefix(std::string_view text);

// Appends `text` to `out`; each broken sequence becomes one U+FFFD.
void append_lossy(std::string_view text, std::string& out);

// Appends the bytes of one code point (below 0x110000, no surrogate).
void append_code_point(char32_t code_point, std::string& out);

}  // namespace monolayer::utf8

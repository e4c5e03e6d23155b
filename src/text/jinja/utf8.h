// Python's view of text over UTF-8 bytes: code points, white space, case.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace monolayer::jinja::utf8 {

// Well-formed UTF-8: no surrogates, no overlong forms, nothing beyond U+10FFFF.
bool valid(std::string_view text);
// Code points of valid UTF-8.
std::size_t count(std::string_view text);
// Byte offset of code point `index`; text.size() if there are not that many.
std::size_t offset(std::string_view text, std::size_t index);
// The code point at byte `at`, and its length in bytes.
struct Point {
  char32_t code = 0;
  std::size_t size = 1;
};
Point decode(std::string_view text, std::size_t at);
void append(std::string& out, char32_t code);

// As str.isspace.
bool is_space(char32_t code);
// First byte past leading white space, and first byte of trailing white space.
std::size_t skip_space(std::string_view text, std::size_t begin = 0);
std::size_t trim_end(std::string_view text, std::size_t begin = 0);

// As str.isprintable, and the category tests of str.isalpha and so on.
bool is_printable(char32_t code);
bool is_alpha(char32_t code);
bool is_digit(char32_t code);
bool is_cased(char32_t code);
bool is_upper(char32_t code);
bool is_lower(char32_t code);

enum class Case : std::uint8_t { kUpper, kLower, kTitle };
// Full case mapping of one code point: U+00DF becomes "SS".
void append_cased(std::string& out, char32_t code, Case to);
// str.upper, str.lower (with final sigma), str.title, str.capitalize.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);

}  // namespace monolayer::jinja::utf8

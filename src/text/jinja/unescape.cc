#include "text/jinja/unescape.h"

#include <cstdint>

#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Appends the character of exactly `digits` hexadecimal digits at `at`.
bool append_hex(std::string& out, std::string_view text, std::size_t at, std::size_t digits) {
  if (at + digits > text.size()) return false;
  std::uint32_t code = 0;
  for (std::size_t i = at; i < at + digits; ++i) {
    const int digit = hex_digit(text[i]);
    if (digit < 0) return false;
    code = code * 16 + static_cast<std::uint32_t>(digit);
  }
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
  utf8::append(out, code);
  return true;
}

// The character of a one-letter escape, or 0.
char simple_escape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return c;
    default:
      return 0;
  }
}

}  // namespace

std::optional<std::string> unescape(std::string_view literal) {
  std::string out;
  out.reserve(literal.size());
  for (std::size_t i = 0; i < literal.size();) {
    const char c = literal[i];
    if (c != '\\' || i + 1 == literal.size()) {
      out.push_back(c);
      ++i;
      continue;
    }
    const char e = literal[i + 1];
    i += 2;
    if (const char simple = simple_escape(e); simple != 0) {
      out.push_back(simple);
    } else if (e == '\n') {
      continue;  // a line joined to the next
    } else if (e >= '0' && e <= '7') {
      char32_t code = static_cast<char32_t>(e - '0');
      for (int n = 1; n < 3 && i < literal.size() && literal[i] >= '0' && literal[i] <= '7'; ++n) {
        code = code * 8 + static_cast<char32_t>(literal[i++] - '0');
      }
      utf8::append(out, code);
    } else if (e == 'x' || e == 'u' || e == 'U') {
      const std::size_t digits = e == 'x' ? 2 : e == 'u' ? 4 : 8;
      if (!append_hex(out, literal, i, digits)) return std::nullopt;
      i += digits;
    } else if (e == 'N') {
      return std::nullopt;  // character names
    } else {
      out.push_back('\\');
      out.push_back(e);
    }
  }
  return out;
}

}  // namespace monolayer::jinja

#include "text/utf8.h"

#include <cstring>

namespace monolayer::utf8 {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t at) {
  return static_cast<std::uint8_t>(text[at]);
}

// Bytes from `at` on that are ASCII, eight at a time.
std::size_t skip_ascii(std::string_view text, std::size_t at) {
  while (at + 8 <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080ULL) != 0) break;
    at += 8;
  }
  while (at < text.size() && byte_at(text, at) < 0x80) ++at;
  return at;
}

}  // namespace

Step step(std::string_view text, std::size_t at) {
  const std::uint8_t lead = byte_at(text, at);
  if (lead < 0x80) return {Kind::kCharacter, 1, lead};
  // The range of the second byte is what keeps out overlong forms, surrogates and values that are
  // too large; later bytes have the full range.
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  std::uint8_t length = 0;
  char32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1FU;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0FU;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07U;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Kind::kInvalid, 1, 0};
  }
  for (std::uint8_t i = 1; i < length; ++i) {
    if (at + i >= text.size()) return {Kind::kIncomplete, i, 0};
    const std::uint8_t byte = byte_at(text, at + i);
    if (byte < low || byte > high) return {Kind::kInvalid, i, 0};
    low = 0x80;
    high = 0xBF;
    code_point = (code_point << 6) | (byte & 0x3FU);
  }
  return {Kind::kCharacter, length, code_point};
}

std::size_t valid_prefix(std::string_view text) {
  std::size_t at = 0;
  while ((at = skip_ascii(text, at)) < text.size()) {
    const Step s = step(text, at);
    if (s.kind != Kind::kCharacter) return at;
    at += s.length;
  }
  return at;
}

void append_lossy(std::string_view text, std::string& out) {
  for (;;) {
    const std::size_t good = valid_prefix(text);
    out.append(text.substr(0, good));
    if (good == text.size()) return;
    out.append(kReplacement);
    text.remove_prefix(good + step(text, good).length);
  }
}

void append_code_point(char32_t code_point, std::string& out) {
  const auto put = [&out](char32_t bits) { out.push_back(static_cast<char>(bits)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace monolayer::utf8

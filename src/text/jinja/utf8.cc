#include "text/jinja/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace monolayer::jinja::utf8 {

namespace {

struct SpecialCase {
  char32_t code;
  std::array<char32_t, 3> upper;
  std::array<char32_t, 3> title;
};
constexpr SpecialCase kSpecialCases[] = {
#include "text/jinja/casing.inc"
};

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Case_Ignorable, as far as general categories tell it: what final sigma looks through.
bool is_case_ignorable(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return code == '\'' || code == '.' || code == ':' || code == 0xb7 || code == 0x387 ||
             code == 0x55f || code == 0x5f4 || code == 0x2018 || code == 0x2019 || code == 0x2024 ||
             code == 0x2027 || code == 0xfe13 || code == 0xfe52 || code == 0xfe55 ||
             code == 0xff07 || code == 0xff0e || code == 0xff1a;
  }
}

// A capital sigma at byte `at` ends its word: a cased letter before it and none after.
bool is_final_sigma(std::string_view text, std::size_t at, std::size_t size) {
  std::size_t before = at;
  bool cased = false;
  while (before > 0) {
    do --before;
    while (before > 0 && is_continuation(text[before]));
    const char32_t code = decode(text, before).code;
    if (is_case_ignorable(code)) continue;
    cased = is_cased(code);
    break;
  }
  if (!cased) return false;
  for (std::size_t after = at + size; after < text.size();) {
    const Point point = decode(text, after);
    after += point.size;
    if (is_case_ignorable(point.code)) continue;
    return !is_cased(point.code);
  }
  return true;
}

// Lower case of the code point at `at` in its context.
void append_lower(std::string& out, std::string_view text, std::size_t at, const Point& point) {
  if (point.code == 0x3a3) {
    append(out, is_final_sigma(text, at, point.size) ? 0x3c2 : 0x3c3);
  } else {
    append_cased(out, point.code, Case::kLower);
  }
}

}  // namespace

Point decode(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<char32_t>(static_cast<unsigned char>(text[i])) : 0u;
  };
  const char32_t lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | (byte(at + 1) & 0x3f), 2};
  if (lead < 0xf0) {
    return {(lead & 0x0f) << 12 | (byte(at + 1) & 0x3f) << 6 | (byte(at + 2) & 0x3f), 3};
  }
  return {(lead & 0x07) << 18 | (byte(at + 1) & 0x3f) << 12 | (byte(at + 2) & 0x3f) << 6 |
              (byte(at + 3) & 0x3f),
          4};
}

bool valid(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || i + size > text.size()) return false;
    for (std::size_t k = 1; k < size; ++k) {
      if (!is_continuation(text[i + k])) return false;
    }
    const char32_t code = decode(text, i).code;
    if ((size == 3 && code < 0x800) || (size == 4 && (code < 0x10000 || code > 0x10ffff)) ||
        (code >= 0xd800 && code < 0xe000)) {
      return false;
    }
    i += size;
  }
  return true;
}

std::size_t count(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

std::size_t offset(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (is_continuation(text[at])) continue;
    if (index == 0) break;
    --index;
  }
  return at;
}

void append(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

std::size_t skip_space(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const Point point = decode(text, begin);
    if (!is_space(point.code)) break;
    begin += point.size;
  }
  return begin;
}

std::size_t trim_end(std::string_view text, std::size_t begin) {
  std::size_t end = text.size();
  while (end > begin) {
    std::size_t last = end - 1;
    while (last > begin && is_continuation(text[last])) --last;
    if (!is_space(decode(text, last).code)) break;
    end = last;
  }
  return end;
}

bool is_printable(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

bool is_alpha(char32_t code) {
  const utf8proc_category_t c = category(code);
  return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
         c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }

bool is_upper(char32_t code) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(code)) != 0; }

bool is_lower(char32_t code) { return utf8proc_islower(static_cast<utf8proc_int32_t>(code)) != 0; }

bool is_cased(char32_t code) {
  return is_upper(code) || is_lower(code) || category(code) == UTF8PROC_CATEGORY_LT;
}

void append_cased(std::string& out, char32_t code, Case to) {
  const auto simple = static_cast<utf8proc_int32_t>(code);
  if (to == Case::kLower) {
    append(out, static_cast<char32_t>(utf8proc_tolower(simple)));
    if (code == 0x130) append(out, 0x307);  // the one lower case of two code points
    return;
  }
  if (code >= 0xdf) {
    const auto* special =
        std::lower_bound(std::begin(kSpecialCases), std::end(kSpecialCases), code,
                         [](const SpecialCase& entry, char32_t c) { return entry.code < c; });
    if (special != std::end(kSpecialCases) && special->code == code) {
      for (const char32_t c : to == Case::kUpper ? special->upper : special->title) {
        if (c != 0) append(out, c);
      }
      return;
    }
  }
  append(out, static_cast<char32_t>(to == Case::kUpper ? utf8proc_toupper(simple)
                                                       : utf8proc_totitle(simple)));
}

std::string upper(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Point point = decode(text, at);
    append_cased(out, point.code, Case::kUpper);
    at += point.size;
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Point point = decode(text, at);
    append_lower(out, text, at, point);
    at += point.size;
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const Point point = decode(text, at);
    if (in_word) {
      append_lower(out, text, at, point);
    } else {
      append_cased(out, point.code, Case::kTitle);
    }
    in_word = is_cased(point.code);
    at += point.size;
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Point point = decode(text, at);
    if (at == 0) {
      append_cased(out, point.code, Case::kTitle);
    } else {
      append_lower(out, text, at, point);
    }
    at += point.size;
  }
  return out;
}

}  // namespace monolayer::jinja::utf8

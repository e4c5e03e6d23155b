#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace monolayer {
namespace {

// No character below U+0300 combines with another or decomposes under NFC; their lead bytes are
// below 0xCC.
bool surely_nfc(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
}

// `tokenizers` normalizes by Unicode 9. Later marks have no combining class there and later pairs
// don't compose, so that nothing is reordered or composed across these characters.
struct Range {
  char32_t first;
  char32_t last;
};
constexpr Range kSinceUnicode9[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105D2, 0x105D2},
    {0x105DA, 0x105DA}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
    {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x11382, 0x11384}, {0x1138B, 0x1138B}, {0x11390, 0x11390},
    {0x113C2, 0x113C2}, {0x113CE, 0x113D0}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x1611E, 0x16129},
    {0x1612F, 0x1612F}, {0x16D63, 0x16D6A}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1E5EE, 0x1E5EF}};

bool since_unicode_9(char32_t c) {
  const auto* it = std::lower_bound(std::begin(kSinceUnicode9), std::end(kSinceUnicode9), c,
                                    [](const Range& range, char32_t v) { return range.last < v; });
  return it != std::end(kSinceUnicode9) && it->first <= c;
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Appends the normal form of decomposed code points, and empties them.
Status compose(std::vector<utf8proc_int32_t>& buffer, std::string& out) {
  // Canonical order. The library's own ordering is quadratic in a run of combining marks.
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    if (combining_class(buffer[i]) == 0) continue;
    std::size_t end = i + 1;
    while (end < buffer.size() && combining_class(buffer[end]) != 0) ++end;
    std::stable_sort(buffer.begin() + static_cast<std::ptrdiff_t>(i),
                     buffer.begin() + static_cast<std::ptrdiff_t>(end),
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    i = end - 1;
  }
  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(buffer.data(), static_cast<utf8proc_ssize_t>(buffer.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  if (length < 0) return {Code::kInternal, "normalizer", utf8proc_errmsg(length)};
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    utf8::append_code_point(static_cast<char32_t>(buffer[static_cast<std::size_t>(i)]), out);
  }
  buffer.clear();
  return {};
}

}  // namespace

Result<std::string> normalize_nfc(std::string_view text) {
  if (surely_nfc(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> buffer;
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Step step = utf8::step(text, at);
    if (since_unicode_9(step.code_point)) {
      ML_RETURN_IF_ERROR(compose(buffer, out));
      out += text.substr(at, step.length);
      at += step.length;
      continue;
    }
    at += step.length;
    std::array<utf8proc_int32_t, 16> parts{};
    int boundclass = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(step.code_point), parts.data(),
        static_cast<utf8proc_ssize_t>(parts.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), &boundclass);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(parts.size())) {
      return Status(Code::kInternal, "normalizer", "a character that does not decompose");
    }
    buffer.insert(buffer.end(), parts.begin(), parts.begin() + count);
  }
  ML_RETURN_IF_ERROR(compose(buffer, out));
  return out;
}

}  // namespace monolayer

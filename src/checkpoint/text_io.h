// Small text: names as messages show them, whole small files, and JSON read strictly.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "core/status.h"

namespace monolayer {

// 'name', cut to about 120 bytes: a name from a file may be megabytes long.
std::string quote_name(std::string_view name);

// The first `limit` of `names`, quoted and comma separated, then "and N more".
template <typename Names>
std::string list_names(const Names& names, std::size_t limit = 5) {
  std::string text;
  std::size_t count = 0;
  for (const auto& name : names) {
    if (count == limit) break;
    if (count++ > 0) text += ", ";
    text += quote_name(name);
  }
  if (names.size() > limit) text += " and " + std::to_string(names.size() - limit) + " more";
  return text;
}

// A whole regular file of at most `max_bytes`. kNotFound, kIoError, or kInvalidFile with the bound
// (an empty file is a valid empty string here).
Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes);

// What the first bytes of something that is not the expected format look like: "an HTML page",
// "a GGUF file", ... Empty when nothing known.
std::string_view known_format(std::string_view first_bytes);

inline constexpr int kMaxJsonDepth = 64;

// RFC 8259 JSON in UTF-8 without comments. Refuses duplicate keys at any level, nesting deeper
// than kMaxJsonDepth and numbers a double cannot hold: kInvalidFile naming `file` and the place.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& file);

}  // namespace monolayer

// How values become text: str(), repr() and JSON, as Python writes them.
#pragma once

#include <string>

#include "text/jinja/text.h"

namespace monolayer::jinja {

// repr(float): the shortest digits that read back.
std::string float_repr(double value);
void append_str(Runtime& rt, TextBuilder& out, const Value& value);
void append_repr(Runtime& rt, TextBuilder& out, const Value& value);
// str(value); a string is returned as it is.
Value to_string(Runtime& rt, const Value& value);

// json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool multiline = false;  // an indent was given
  std::string indent;      // one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
Value to_json(Runtime& rt, const Value& value, const JsonStyle& style);

}  // namespace monolayer::jinja

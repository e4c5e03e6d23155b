// Escape sequences of a string literal, as Python reads them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace monolayer::jinja {

// The text of a literal without its quotes; nullopt for a malformed \x, \u, \U or \N escape or one
// that names no character. Unknown escapes stay as they are, backslash included.
std::optional<std::string> unescape(std::string_view literal);

}  // namespace monolayer::jinja

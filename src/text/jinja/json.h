// JSON to template values. Every string and container is untrusted unless said otherwise.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "core/status.h"
#include "text/jinja/value.h"

namespace monolayer::jinja {

enum class Trust : std::uint8_t { kUntrusted, kTrusted };

// Deepest nesting of arrays and objects accepted.
inline constexpr int kJsonDepth = 128;

// Key order is kept, so pass an ordered_json. `subject` names the input in errors: invalid UTF-8,
// nesting beyond kJsonDepth.
Result<Value> from_json(const nlohmann::ordered_json& json, std::string_view subject,
                        Trust trust = Trust::kUntrusted);
// Parses text: also keeps integers beyond 64 bits exactly.
Result<Value> parse_json(std::string_view text, std::string_view subject,
                         Trust trust = Trust::kUntrusted);

}  // namespace monolayer::jinja

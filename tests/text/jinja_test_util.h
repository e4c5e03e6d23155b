// Rendering one-line templates in tests.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace monolayer::jinja {

// The text, or "error: " and the status.
inline std::string render(std::string_view source, std::string_view variables = "{}",
                          const Limits& limits = {}) {
  const auto values = parse_json(variables, "variables");
  if (!values.ok()) return "error: " + values.status().to_string();
  const auto parsed = Template::parse(source, "t", limits);
  if (!parsed.ok()) return "error: " + parsed.status().to_string();
  const auto rendered = parsed->render(*values);
  if (!rendered.ok()) return "error: " + rendered.status().to_string();
  return rendered->text;
}

// The text with every untrusted run between guillemets.
inline std::string render_marked(std::string_view source, std::string_view variables) {
  const auto values = parse_json(variables, "variables");
  const auto parsed = Template::parse(source, "t");
  if (!values.ok() || !parsed.ok()) return "error";
  const auto rendered = parsed->render(*values);
  if (!rendered.ok()) return "error: " + rendered.status().to_string();
  std::string out;
  std::size_t at = 0;
  for (const Mark& mark : rendered->untrusted) {
    out.append(rendered->text, at, mark.begin - at);
    out += "«" + rendered->text.substr(mark.begin, mark.end - mark.begin) + "»";
    at = mark.end;
  }
  return out.append(rendered->text, at);
}

}  // namespace monolayer::jinja

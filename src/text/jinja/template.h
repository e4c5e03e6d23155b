// A parsed chat template. The interpreter covers Jinja as chat templates use it; what it lacks is
// refused by name when the template is parsed (README.md lists it).
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "text/jinja/value.h"

namespace monolayer::jinja {

struct Parsed;

// Rendered text. `untrusted` marks the bytes that came from the variables rather than from the
// template's own literals, ascending and disjoint.
struct Rendered {
  std::string text;
  Marks untrusted;
};

struct RenderOptions {
  // What strftime_now formats; absent: the local time.
  std::optional<std::tm> now;
};

// Immutable and cheap to copy; rendering from several threads at once is fine.
class Template {
 public:
  // Errors name `name` and the line: kInvalidFile for syntax, kUnsupported for constructs this
  // interpreter does not have, kResourceExhausted for a limit.
  static Result<Template> parse(std::string_view source, std::string name,
                                const Limits& limits = {});

  // `variables` is a dict. Errors: kInvalidArgument for what the template itself raises or cannot
  // compute, otherwise as parse.
  Result<Rendered> render(const Value& variables, const RenderOptions& options = {}) const;

 private:
  explicit Template(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace monolayer::jinja

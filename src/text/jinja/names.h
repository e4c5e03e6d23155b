// Walking the names of a syntax tree in the order Jinja looks at them.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace monolayer::jinja {

// Whether `body` reads `name` before any statement in it (nested ones included) stores it.
bool reads_undeclared(const Body& body, std::string_view name);
// Whether anything in the loop assigns to `name`.
bool assigns(const Stmt& loop, std::string_view name);

}  // namespace monolayer::jinja

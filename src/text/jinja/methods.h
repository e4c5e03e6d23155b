// Tables of methods, for methods.cc.
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/objects.h"

namespace monolayer::jinja {

struct MethodEntry {
  std::string_view name;
  MethodFn run;  // null: exists in Python, not implemented here
};

std::span<const MethodEntry> string_methods();

}  // namespace monolayer::jinja

// Filters, tests, methods and global functions by name.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/evaluator.h"

namespace monolayer::jinja {

using FilterFn = Value (*)(Evaluator&, const Value& input, CallArgs& args);
struct FilterEntry {
  std::string_view name;
  FilterFn run;
};
// nullptr if there is none.
const FilterEntry* find_filter(std::string_view name);

using TestFn = bool (*)(Evaluator&, const Value& input, CallArgs& args);
struct TestEntry {
  std::string_view name;
  TestFn run;
};
const TestEntry* find_test(std::string_view name);

// What Python finds as an attribute of a built-in type.
struct MethodLookup {
  enum class Found : std::uint8_t { kNone, kMethod, kRefused } found = Found::kNone;
  MethodFn run = nullptr;
};
// kRefused: the method exists in Python but would change the value, so sandboxed templates see
// undefined. Fails (Code::kUnsupported) for methods that exist but are not implemented here.
MethodLookup find_method(const Value& self, std::string_view name);

// Missing if there is no such global.
Value find_global(std::string_view name);

// Arguments of a builtin, bound to parameter names as Python would.
class Bound {
 public:
  // `required`: the first so many have no default. Fails as a Python call would.
  Bound(std::string_view function, CallArgs& args, std::initializer_list<std::string_view> names,
        std::size_t required = 0);
  bool has(std::size_t i) const { return !values_[i].is(Kind::kMissing); }
  const Value& operator[](std::size_t i) const { return values_[i]; }
  bool truth(std::size_t i, bool fallback) const;
  // An int argument; None counts as absent.
  std::int64_t integer(std::size_t i, std::int64_t fallback) const;
  // A str argument; null if absent or None.
  const StringData* text(std::size_t i) const;

 private:
  std::string_view function_;
  std::vector<Value> values_;
};

// attribute="a.b.0" of map, sort and the like: its parts, and the item they lead to.
std::vector<Value> attribute_path(Evaluator& e, const Value& attribute);
Value follow_path(Evaluator& e, Value item, const std::vector<Value>& path);

// Tables, by file.
struct FilterTable {
  const FilterEntry* begin;
  const FilterEntry* end;
};
FilterTable text_filters();
FilterTable sequence_filters();
FilterTable selection_filters();
FilterTable number_filters();

}  // namespace monolayer::jinja

// Template objects: what a value of Kind::kObject points to. Owned by the evaluator.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace monolayer::jinja {

class Evaluator;
struct MacroDef;
struct Stmt;

// Arguments of a call, filter or test.
struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// The variables of one activation of a frame.
struct Frame {
  Frame* outer = nullptr;
  std::vector<Value> slots;
  bool kept = false;  // a macro refers to it: lives until the render ends
};

struct Namespace : Object {
  Namespace() : Object(ObjectType::kNamespace) {}
  std::vector<std::pair<Value, Value>> attributes;  // in order of first assignment
  Value* find(std::string_view name);
};

struct Macro : Object {
  Macro(const MacroDef* macro, Frame* enclosing)
      : Object(ObjectType::kMacro), definition(macro), frame(enclosing) {}
  const MacroDef* definition;
  Frame* frame;
};

// The items of a lazy filter. They are computed at once, but can be iterated only once.
struct Generator : Object {
  explicit Generator(Value items) : Object(ObjectType::kGenerator), list(std::move(items)) {}
  Value list;
  std::size_t next = 0;
  std::optional<Failure> failure;  // after the last item
};

using MethodFn = Value (*)(Evaluator&, const Value& self, CallArgs& args);

struct Method : Object {
  Method(Value receiver, MethodFn function)
      : Object(ObjectType::kMethod), self(std::move(receiver)), run(function) {}
  Value self;
  MethodFn run;
};

using GlobalFn = Value (*)(Evaluator&, CallArgs& args);

struct Function : Object {
  Function(std::string_view function_name, GlobalFn function)
      : Object(ObjectType::kFunction), name(function_name), run(function) {}
  std::string_view name;
  GlobalFn run;
};

struct Cycler : Object {
  explicit Cycler(std::vector<Value> values)
      : Object(ObjectType::kCycler), items(std::move(values)) {}
  std::vector<Value> items;
  std::size_t position = 0;
};

struct Joiner : Object {
  explicit Joiner(Value text) : Object(ObjectType::kJoiner), separator(std::move(text)) {}
  Value separator;
  bool used = false;
};

// Walks what can be iterated: lists, the characters of a string, the keys of a dict, a generator,
// nothing for an undefined value. Fails for anything else. Charges one step an item.
class Cursor {
 public:
  Cursor(Runtime& rt, Value iterable);
  // False at the end.
  bool next(Value* item);
  // The number of items, as len() gives it; -1 where Python's object has none.
  std::int64_t length() const;

 private:
  Runtime& rt_;
  Value iterable_;
  std::size_t at_ = 0;
};

// Whether Cursor accepts it.
bool iterable(const Value& value);

}  // namespace monolayer::jinja

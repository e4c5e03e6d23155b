// Attribute access, subscripts and calls, as the sandboxed environment does them.
#include <algorithm>
#include <utility>

#include "text/jinja/activation.h"
#include "text/jinja/builtins.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"

namespace monolayer::jinja {

namespace {

std::string no_attribute(const Value& object, const std::string& name) {
  if (object.is(Kind::kNone)) return "'None' has no attribute '" + name + "'";
  return cat({"'", type_name(object), " object' has no attribute '", name, "'"});
}

}  // namespace

Value Evaluator::object_attribute(Object* object, const std::string& name) {
  switch (object->type) {
    case ObjectType::kNamespace: {
      auto& space = *static_cast<Namespace*>(object);
      rt.step(1 + space.attributes.size() / 8);
      if (!name.empty() && name[0] == '_') break;
      if (const Value* value = space.find(name)) return *value;
      break;
    }
    case ObjectType::kLoop:
      return loop_attribute(*static_cast<LoopState*>(object), name);
    case ObjectType::kMacro: {
      const MacroDef& macro = *static_cast<Macro*>(object)->definition;
      if (name == "name") {
        return macro.name.empty() ? Value() : make_string(rt, macro.name);
      }
      if (name == "arguments") {
        ListBuilder names(&rt);
        for (const Parameter& p : macro.parameters) names.add(make_string(rt, p.name));
        return names.finish(Flavor::kTuple);
      }
      if (name == "caller") return Value::boolean(macro.caller_slot >= 0);
      if (name == "catch_kwargs") return Value::boolean(macro.kwargs_slot >= 0);
      if (name == "catch_varargs") return Value::boolean(macro.varargs_slot >= 0);
      break;
    }
    case ObjectType::kCycler: {
      auto& cycler = *static_cast<Cycler*>(object);
      if (name == "current") return cycler.items[cycler.position];
      if (name == "next") {
        return Value::object(
            make<Method>(Value::object(object), [](Evaluator&, const Value& self, CallArgs&) {
              auto& c = *static_cast<Cycler*>(self.object());
              Value value = c.items[c.position];
              c.position = (c.position + 1) % c.items.size();
              return value;
            }));
      }
      if (name == "reset") {
        return Value::object(
            make<Method>(Value::object(object), [](Evaluator&, const Value& self, CallArgs&) {
              static_cast<Cycler*>(self.object())->position = 0;
              return Value();
            }));
      }
      break;
    }
    default:
      break;
  }
  return Value::undefined(no_attribute(Value::object(object), name));
}

// An attribute in Python's sense, before the fallback to a key of the same name.
bool Evaluator::own_attribute(const Value& object, const std::string& name, Value* result) {
  const MethodLookup method = find_method(object, name);
  switch (method.found) {
    case MethodLookup::Found::kNone:
      return false;
    case MethodLookup::Found::kMethod:
      *result = Value::object(make<Method>(object, method.run));
      return true;
    case MethodLookup::Found::kRefused:
      *result = Value::undefined(
          cat({"access to attribute '", name, "' of '", type_name(object), "' object is unsafe"}));
      return true;
  }
  return false;
}

// object[key] in Python's sense.
bool Evaluator::own_item(const Value& object, const Value& key, Value* result) {
  if (object.is(Kind::kDict)) {
    if (!hashable(key)) return false;
    const Value* value = object.dict().find(key);
    if (value == nullptr) return false;
    *result = *value;
    return true;
  }
  if (!key.is_integer()) return false;
  std::int64_t index = key.as_int();
  if (object.is(Kind::kList) && object.list().flavor <= Flavor::kRange) {
    const auto& items = object.list().items;
    const auto length = static_cast<std::int64_t>(items.size());
    if (index < 0) index += length;
    if (index < 0 || index >= length) return false;
    *result = items[static_cast<std::size_t>(index)];
    return true;
  }
  if (object.is(Kind::kString)) {
    const auto length = static_cast<std::int64_t>(object.str().code_points);
    if (index < 0) index += length;
    if (index < 0 || index >= length) return false;
    *result = slice_string(rt, object, index, index + 1, 1);
    return true;
  }
  return false;
}

Value Evaluator::attribute(const Value& object, const std::string& name) {
  require_defined(object);
  if (object.is(Kind::kObject)) return object_attribute(object.object(), name);
  Value result;
  if (own_attribute(object, name, &result)) return result;
  if (object.is(Kind::kDict)) {
    if (const Value* value = object.dict().find(std::string_view(name))) return *value;
  }
  return Value::undefined(no_attribute(object, name));
}

Value Evaluator::item(const Value& object, const Value& key) {
  require_defined(object);
  Value result;
  if (own_item(object, key, &result)) return result;
  if (key.is(Kind::kString)) {
    const std::string& name = key.str().bytes;
    if (object.is(Kind::kObject)) return object_attribute(object.object(), name);
    if (own_attribute(object, name, &result)) return result;
    return Value::undefined(no_attribute(object, name));
  }
  const std::string shown =
      key.is(Kind::kInt) ? std::to_string(key.as_int()) : cat({"of type ", type_name(key)});
  return Value::undefined(cat({"'", type_name(object), " object' has no element ", shown}));
}

Value Evaluator::evaluate_call(const Expr& expr, Frame& frame, const Value* caller) {
  const Expr& callee = *expr.args[0];
  CallArgs args;
  // object.method(...) needs no method object.
  if (callee.kind == ExprKind::kAttribute) {
    const Value object = evaluate_base(*callee.args[0], frame);
    rt.line = callee.line;
    require_defined(object);
    if (object.is(Kind::kObject)) {
      if (const MethodFn method = loop_method(object, callee.name)) {
        evaluate_arguments(expr, 1, frame, args);
        rt.line = expr.line;
        return method(*this, object, args);
      }
    } else {
      const MethodLookup method = find_method(object, callee.name);
      if (method.found == MethodLookup::Found::kMethod) {
        evaluate_arguments(expr, 1, frame, args);
        if (caller != nullptr) args.named.emplace_back("caller", *caller);
        rt.line = expr.line;
        return method.run(*this, object, args);
      }
    }
    const Value function = attribute(object, callee.name);
    evaluate_arguments(expr, 1, frame, args);
    if (caller != nullptr) args.named.emplace_back("caller", *caller);
    rt.line = expr.line;
    return call(function, args);
  }
  const Value function = evaluate_base(callee, frame);
  evaluate_arguments(expr, 1, frame, args);
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  rt.line = expr.line;
  return call(function, args);
}

Value Evaluator::call(const Value& callee, CallArgs& args) {
  require_defined(callee);
  if (callee.is(Kind::kObject)) {
    Object* object = callee.object();
    switch (object->type) {
      case ObjectType::kMacro:
        return call_macro(*static_cast<Macro*>(object), args);
      case ObjectType::kLoop:
        return loop_call(*static_cast<LoopState*>(object), args);
      case ObjectType::kMethod: {
        auto& method = *static_cast<Method*>(object);
        return method.run(*this, method.self, args);
      }
      case ObjectType::kFunction:
        return static_cast<Function*>(object)->run(*this, args);
      case ObjectType::kJoiner: {
        auto& joiner = *static_cast<Joiner*>(object);
        if (std::exchange(joiner.used, true)) return joiner.separator;
        return make_string(rt, "");
      }
      default:
        break;
    }
  }
  fail(cat({"'", type_name(callee), "' object is not callable"}));
}

Value Evaluator::call_macro(const Macro& macro, CallArgs& args) {
  const MacroDef& def = *macro.definition;
  const Activation scope(*this, macro.frame, def.frame, {.enter_now = false, .clear = false});
  std::vector<Value>& slots = scope.frame().slots;
  const auto slot = [&](int index) -> Value& { return slots[static_cast<std::size_t>(index)]; };
  const auto take_named = [&](const std::string& name) {
    const auto place = std::find_if(args.named.begin(), args.named.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    if (place == args.named.end()) return Value::missing();
    Value value = std::move(place->second);
    args.named.erase(place);
    return value;
  };
  const std::string shown = def.name.empty() ? "None" : "'" + def.name + "'";

  const std::size_t given = std::min(args.positional.size(), def.parameters.size());
  bool caller_bound = def.explicit_caller && given == def.parameters.size();
  for (std::size_t i = 0; i < def.parameters.size(); ++i) {
    const Parameter& parameter = def.parameters[i];
    if (i < given) {
      slot(parameter.slot) = args.positional[i];
    } else {
      slot(parameter.slot) = take_named(parameter.name);
      if (parameter.name == "caller") caller_bound = true;
    }
  }
  if (def.caller_slot >= 0 && !caller_bound) {
    Value caller = take_named("caller");
    if (caller.is(Kind::kMissing) || caller.is(Kind::kNone)) {
      caller = Value::undefined("no caller defined");
    }
    slot(def.caller_slot) = std::move(caller);
  }
  if (def.kwargs_slot >= 0) {
    DictBuilder rest(&rt);
    for (auto& [name, value] : args.named) rest.add(make_string(rt, name), std::move(value));
    slot(def.kwargs_slot) = rest.finish();
  } else if (!args.named.empty()) {
    fail(cat({"macro ", shown, " takes no keyword argument '", args.named[0].first, "'"}));
  }
  if (def.varargs_slot >= 0) {
    ListBuilder rest(&rt);
    for (std::size_t i = given; i < args.positional.size(); ++i) rest.add(args.positional[i]);
    slot(def.varargs_slot) = rest.finish(Flavor::kTuple);
  } else if (args.positional.size() > def.parameters.size()) {
    fail(cat({"macro ", shown, " takes not more than ", std::to_string(def.parameters.size()),
              " argument(s)"}));
  }
  enter(scope.frame(), def.frame);
  for (const Parameter& parameter : def.parameters) {
    Value& value = slot(parameter.slot);
    if (!value.is(Kind::kMissing)) continue;
    Value fallback =
        parameter.fallback
            ? evaluate(*parameter.fallback, scope.frame())
            : Value::undefined(cat({"parameter '", parameter.name, "' was not provided"}));
    slot(parameter.slot) = std::move(fallback);
  }
  TextBuilder out(rt);
  execute(def.body, scope.frame(), out);
  return out.finish();
}

Value Evaluator::apply_filter(const std::string& name, const Value& input, CallArgs& args) {
  const FilterEntry* entry = find_filter(name);
  if (entry == nullptr) fail_unsupported(cat({"no filter named '", name, "' is supported"}));
  return entry->run(*this, input, args);
}

bool Evaluator::apply_test(const std::string& name, const Value& input, CallArgs& args) {
  const TestEntry* entry = find_test(name);
  if (entry == nullptr) fail_unsupported(cat({"no test named '", name, "' is supported"}));
  return entry->run(*this, input, args);
}

}  // namespace monolayer::jinja

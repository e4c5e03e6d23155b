// Methods of lists, tuples and dicts, and the lookup over all types.
#include <algorithm>
#include <array>
#include <string_view>

#include "text/jinja/builtins.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace monolayer::jinja {

namespace {

Value list_index(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("index", args, {"value"}, 1);
  const auto& items = self.list().items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equal(e.rt, items[i], bound[0])) return Value::integer(static_cast<std::int64_t>(i));
  }
  fail(cat({"the value is not in the ", type_name(self)}));
}

Value list_count(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("count", args, {"value"}, 1);
  std::int64_t count = 0;
  for (const Value& item : self.list().items) count += equal(e.rt, item, bound[0]) ? 1 : 0;
  return Value::integer(count);
}

// Values do not change, so a copy is the value itself.
Value copy(Evaluator&, const Value& self, CallArgs& args) {
  const Bound bound("copy", args, {});
  return self;
}

Value dict_get(Evaluator&, const Value& self, CallArgs& args) {
  if (!args.named.empty()) fail("get takes no keyword arguments");
  const Bound bound("get", args, {"key", "default"}, 1);
  if (!hashable(bound[0])) fail(cat({"unhashable type: '", type_name(bound[0]), "'"}));
  if (const Value* value = self.dict().find(bound[0])) return *value;
  return bound.has(1) ? bound[1] : Value();
}

Value dict_keys(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("keys", args, {});
  ListBuilder out(&e.rt);
  for (const auto& [key, value] : self.dict().entries) out.add(key);
  return out.finish(Flavor::kKeys, self.dict().untrusted);
}

Value dict_values(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("values", args, {});
  ListBuilder out(&e.rt);
  for (const auto& [key, value] : self.dict().entries) out.add(value);
  return out.finish(Flavor::kValues, self.dict().untrusted);
}

Value dict_items(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("items", args, {});
  ListBuilder out(&e.rt);
  for (const auto& [key, value] : self.dict().entries) {
    ListBuilder pair(&e.rt);
    pair.add(key);
    pair.add(value);
    out.add(pair.finish(Flavor::kTuple, self.dict().untrusted));
  }
  return out.finish(Flavor::kItems, self.dict().untrusted);
}

constexpr MethodEntry kListMethods[] = {
    {"index", list_index}, {"count", list_count}, {"copy", copy}};
constexpr std::string_view kListRefused[] = {"append", "clear",   "extend", "insert",
                                             "pop",    "reverse", "remove", "sort"};
constexpr MethodEntry kTupleMethods[] = {{"index", list_index}, {"count", list_count}};
constexpr MethodEntry kDictMethods[] = {{"get", dict_get},       {"keys", dict_keys},
                                        {"values", dict_values}, {"items", dict_items},
                                        {"copy", copy},          {"fromkeys", nullptr}};
constexpr std::string_view kDictRefused[] = {"clear", "pop", "popitem", "setdefault", "update"};

template <typename Methods>
MethodLookup search(const Methods& methods, const Value& self, std::string_view name) {
  for (const MethodEntry& entry : methods) {
    if (entry.name != name) continue;
    if (entry.run == nullptr) {
      fail_unsupported(cat({"method '", name, "' of ", type_name(self)}));
    }
    return {MethodLookup::Found::kMethod, entry.run};
  }
  return {};
}

template <typename Names>
bool listed(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

MethodLookup find_method(const Value& self, std::string_view name) {
  constexpr MethodLookup kRefused{MethodLookup::Found::kRefused, nullptr};
  switch (self.kind()) {
    case Kind::kString:
      return search(string_methods(), self, name);
    case Kind::kDict:
      if (listed(kDictRefused, name)) return kRefused;
      return search(kDictMethods, self, name);
    case Kind::kList:
      if (self.list().flavor == Flavor::kList) {
        if (listed(kListRefused, name)) return kRefused;
        return search(kListMethods, self, name);
      }
      if (self.list().flavor <= Flavor::kRange) return search(kTupleMethods, self, name);
      return {};
    default:
      return {};
  }
}

}  // namespace monolayer::jinja

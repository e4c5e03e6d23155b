// default, attr, map, and the four filters that pick items: select, reject, selectattr, rejectattr.
#include <algorithm>
#include <utility>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"

namespace monolayer::jinja {

std::vector<Value> attribute_path(Evaluator& e, const Value& attribute) {
  if (attribute.is(Kind::kNone)) return {};
  if (!attribute.is(Kind::kString)) return {attribute};
  std::vector<Value> path;
  const std::string& text = attribute.str().bytes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const bool digits = !part.empty() && part.size() < 19 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    path.push_back(digits ? Value::integer(std::stoll(part)) : make_string(e.rt, part));
    begin = end + 1;
  }
  return path;
}

Value follow_path(Evaluator& e, Value item, const std::vector<Value>& path) {
  for (const Value& part : path) item = e.item(item, part);
  return item;
}

namespace {

// The rest of a filter's arguments, which are those of the filter or test it applies.
CallArgs drop_first(const CallArgs& args, std::size_t count) {
  CallArgs rest;
  rest.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(count),
                         args.positional.end());
  rest.named = args.named;
  return rest;
}

const std::string& name_argument(const CallArgs& args, std::size_t index, const char* filter) {
  const Value& name = args.positional[index];
  if (!name.is(Kind::kString)) fail(cat({filter, " takes a name"}));
  return name.str().bytes;
}

void map_attribute(Evaluator& e, const Value& input, CallArgs& args, ListBuilder& out) {
  const Bound bound("map", args, {"attribute", "default"}, 1);
  const std::vector<Value> path = attribute_path(e, bound[0]);
  const bool with_default = bound.has(1) && !bound[1].is(Kind::kNone);
  Cursor cursor(e.rt, input);
  Value item;
  while (cursor.next(&item)) {
    for (const Value& part : path) {
      item = e.item(item, part);
      if (with_default && item.is(Kind::kUndefined)) item = bound[1];
    }
    out.add(item);
  }
}

Value filter_map(Evaluator& e, const Value& input, CallArgs& args) {
  return e.generator([&](ListBuilder& out) {
    if (!truth(input)) return;
    if (args.positional.empty()) {
      map_attribute(e, input, args, out);
      return;
    }
    const std::string& name = name_argument(args, 0, "map");
    Cursor cursor(e.rt, input);
    Value item;
    while (cursor.next(&item)) {
      CallArgs rest = drop_first(args, 1);
      out.add(e.apply_filter(name, item, rest));
    }
  });
}

Value pick(Evaluator& e, const Value& input, CallArgs& args, const char* filter, bool wanted,
           bool by_attribute) {
  return e.generator([&](ListBuilder& out) {
    if (!truth(input)) return;
    std::size_t next = 0;
    std::vector<Value> path;
    if (by_attribute) {
      if (args.positional.empty()) fail(cat({filter, ": missing attribute name"}));
      path = attribute_path(e, args.positional[next++]);
    }
    const bool tested = args.positional.size() > next;
    Cursor cursor(e.rt, input);
    Value item;
    while (cursor.next(&item)) {
      const Value subject = follow_path(e, item, path);
      bool holds = false;
      if (tested) {
        CallArgs rest = drop_first(args, next + 1);
        holds = e.apply_test(name_argument(args, next, filter), subject, rest);
      } else {
        holds = truth(subject);
      }
      if (holds == wanted) out.add(item);
    }
  });
}

Value filter_select(Evaluator& e, const Value& input, CallArgs& args) {
  return pick(e, input, args, "select", true, false);
}

Value filter_reject(Evaluator& e, const Value& input, CallArgs& args) {
  return pick(e, input, args, "reject", false, false);
}

Value filter_selectattr(Evaluator& e, const Value& input, CallArgs& args) {
  return pick(e, input, args, "selectattr", true, true);
}

Value filter_rejectattr(Evaluator& e, const Value& input, CallArgs& args) {
  return pick(e, input, args, "rejectattr", false, true);
}

Value filter_default(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("default", args, {"default_value", "boolean"});
  if (input.is(Kind::kUndefined) || (bound.truth(1, false) && !truth(input))) {
    return bound.has(0) ? bound[0] : make_string(e.rt, "");
  }
  return input;
}

constexpr FilterEntry kFilters[] = {
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {"default", filter_default},
    {"d", filter_default},
};

}  // namespace

FilterTable selection_filters() { return {std::begin(kFilters), std::end(kFilters)}; }

}  // namespace monolayer::jinja

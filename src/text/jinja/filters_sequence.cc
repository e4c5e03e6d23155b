// Filters over sequences and mappings as wholes.
#include <algorithm>
#include <set>
#include <utility>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"
#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

std::int64_t length_of(Evaluator& e, const Value& value) {
  const std::int64_t length = iterable(value) ? Cursor(e.rt, value).length() : -1;
  if (length < 0) fail(cat({"object of type '", type_name(value), "' has no len()"}));
  return length;
}

// Sort keys compare strings without regard to case, unless asked otherwise.
Value fold_case(Evaluator& e, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::kString)) return value;
  e.rt.text(16 * value.str().bytes.size());
  return make_string(e.rt, utf8::lower(value.str().bytes));
}

struct Keyed {
  Value key;
  Value item;
};

void sort_by_key(Evaluator& e, std::vector<Keyed>& items, bool reverse) {
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? ordered(e.rt, CompareOp::kLt, b.key, a.key)
                   : ordered(e.rt, CompareOp::kLt, a.key, b.key);
  });
}

Value filter_length(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("length", args, {});
  return Value::integer(length_of(e, input));
}

Value filter_list(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("list", args, {});
  ListBuilder out(&e.rt);
  Cursor cursor(e.rt, input);
  Value item;
  while (cursor.next(&item)) out.add(item);
  const bool untrusted = input.is(Kind::kList) && input.list().untrusted;
  return out.finish(Flavor::kList, untrusted);
}

Value filter_first(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("first", args, {});
  Value item;
  if (Cursor(e.rt, input).next(&item)) return item;
  return Value::undefined("no first item, sequence was empty");
}

Value filter_last(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("last", args, {});
  Value empty = Value::undefined("no last item, sequence was empty");
  if (input.is(Kind::kUndefined)) return empty;
  if (input.is(Kind::kList)) {
    const auto& items = input.list().items;
    return items.empty() ? empty : items.back();
  }
  if (input.is(Kind::kDict)) {
    const auto& entries = input.dict().entries;
    return entries.empty() ? empty : entries.back().first;
  }
  if (input.is(Kind::kString)) {
    const auto length = static_cast<std::int64_t>(input.str().code_points);
    return length == 0 ? empty : slice_string(e.rt, input, length - 1, length, 1);
  }
  fail(cat({"'", type_name(input), "' object is not reversible"}));
}

Value filter_reverse(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("reverse", args, {});
  if (input.is(Kind::kString)) {
    const auto length = static_cast<std::int64_t>(input.str().code_points);
    return slice_string(e.rt, input, length - 1, -1, -1);
  }
  Cursor cursor(e.rt, input);
  const auto reversed = [&](ListBuilder& out) {
    Value item;
    while (cursor.next(&item)) out.add(item);
    std::reverse(out.items().begin(), out.items().end());
  };
  // Python reverses anything with a length lazily, and a generator into a list.
  if (cursor.length() >= 0) return e.generator(reversed);
  ListBuilder out(&e.rt);
  reversed(out);
  return out.finish();
}

Value pair(Evaluator& e, const Value& key, const Value& value) {
  ListBuilder out(&e.rt);
  out.add(key);
  out.add(value);
  return out.finish(Flavor::kTuple);
}

Value filter_items(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("items", args, {});
  return e.generator([&](ListBuilder& out) {
    if (input.is(Kind::kUndefined)) return;
    if (!input.is(Kind::kDict)) fail("can only get item pairs from a mapping");
    for (const auto& [key, value] : input.dict().entries) out.add(pair(e, key, value));
  });
}

Value filter_dictsort(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("dictsort", args, {"case_sensitive", "by", "reverse"});
  const StringData* by = bound.text(1);
  const bool by_value = by != nullptr && by->bytes == "value";
  if (by != nullptr && !by_value && by->bytes != "key") {
    fail("dictsort sorts by either \"key\" or \"value\"");
  }
  require_defined(input);
  if (!input.is(Kind::kDict)) fail("dictsort takes a mapping");
  std::vector<Keyed> items;
  for (const auto& [key, value] : input.dict().entries) {
    ListBuilder pair(&e.rt);
    pair.add(key);
    pair.add(value);
    items.push_back(
        {fold_case(e, by_value ? value : key, bound.truth(0, false)), pair.finish(Flavor::kTuple)});
  }
  sort_by_key(e, items, bound.truth(2, false));
  ListBuilder out(&e.rt);
  for (Keyed& keyed : items) out.add(std::move(keyed.item));
  return out.finish();
}

Value filter_sort(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("sort", args, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound.truth(1, false);
  // A comma separated list of attributes sorts by all of them.
  std::vector<std::vector<Value>> paths;
  if (bound.has(2) && bound[2].is(Kind::kString)) {
    const Value comma = Value::literal(",");
    const Value parts = split(e.rt, bound[2], &comma.str(), -1, false);
    for (const Value& part : parts.list().items) paths.push_back(attribute_path(e, part));
  } else if (bound.has(2) && !bound[2].is(Kind::kNone)) {
    paths.push_back(attribute_path(e, bound[2]));
  } else {
    paths.emplace_back();
  }
  std::vector<Keyed> items;
  Cursor cursor(e.rt, input);
  Value item;
  while (cursor.next(&item)) {
    ListBuilder key(&e.rt);
    for (const auto& path : paths) {
      key.add(fold_case(e, follow_path(e, item, path), case_sensitive));
    }
    items.push_back({key.finish(), item});
  }
  sort_by_key(e, items, bound.truth(0, false));
  ListBuilder out(&e.rt);
  for (Keyed& keyed : items) out.add(std::move(keyed.item));
  return out.finish();
}

Value filter_unique(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("unique", args, {"case_sensitive", "attribute"});
  std::vector<Value> path;
  if (bound.has(1)) path = attribute_path(e, bound[1]);
  const bool case_sensitive = bound.truth(0, false);
  return e.generator([&](ListBuilder& out) {
    const auto less = [](const Value& a, const Value& b) { return compare_keys(a, b) < 0; };
    std::set<Value, decltype(less)> seen(less);
    Cursor cursor(e.rt, input);
    Value item;
    while (cursor.next(&item)) {
      Value key = fold_case(e, follow_path(e, item, path), case_sensitive);
      if (!hashable(key)) fail(cat({"unhashable type: '", type_name(key), "'"}));
      e.rt.step(8);
      if (seen.insert(std::move(key)).second) out.add(item);
    }
  });
}

Value extreme(Evaluator& e, const Value& input, CallArgs& args, std::string_view name,
              CompareOp better) {
  const Bound bound(name, args, {"case_sensitive", "attribute"});
  std::vector<Value> path;
  if (bound.has(1)) path = attribute_path(e, bound[1]);
  Cursor cursor(e.rt, input);
  Value best, best_key, item;
  bool any = false;
  while (cursor.next(&item)) {
    Value key = fold_case(e, follow_path(e, item, path), bound.truth(0, false));
    if (any && !ordered(e.rt, better, key, best_key)) continue;
    any = true;
    best = item;
    best_key = std::move(key);
  }
  return any ? best : Value::undefined("no aggregated item, sequence was empty");
}

Value filter_min(Evaluator& e, const Value& input, CallArgs& args) {
  return extreme(e, input, args, "min", CompareOp::kLt);
}

Value filter_max(Evaluator& e, const Value& input, CallArgs& args) {
  return extreme(e, input, args, "max", CompareOp::kGt);
}

Value filter_sum(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("sum", args, {"attribute", "start"});
  std::vector<Value> path;
  if (bound.has(0)) path = attribute_path(e, bound[0]);
  Value total = bound.has(1) ? bound[1] : Value::integer(0);
  if (total.is(Kind::kString)) fail("sum() can't sum strings");
  Cursor cursor(e.rt, input);
  Value item;
  while (cursor.next(&item)) {
    total = arithmetic(e.rt, ExprKind::kAdd, total, follow_path(e, item, path));
  }
  return total;
}

constexpr FilterEntry kFilters[] = {
    {"length", filter_length}, {"count", filter_length},      {"list", filter_list},
    {"first", filter_first},   {"last", filter_last},         {"reverse", filter_reverse},
    {"items", filter_items},   {"dictsort", filter_dictsort}, {"sort", filter_sort},
    {"unique", filter_unique}, {"min", filter_min},           {"max", filter_max},
    {"sum", filter_sum},
};

}  // namespace

FilterTable sequence_filters() { return {std::begin(kFilters), std::end(kFilters)}; }

}  // namespace monolayer::jinja

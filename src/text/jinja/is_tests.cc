// What may stand after `is`.
#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"
#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

template <bool (*kPredicate)(const Value&)>
bool simple(Evaluator&, const Value& value, CallArgs& args) {
  const Bound bound("test", args, {});
  return kPredicate(value);
}

template <CompareOp kOp>
bool comparison(Evaluator& e, const Value& value, CallArgs& args) {
  const Bound bound("test", args, {"other"}, 1);
  return compare(e.rt, kOp, value, bound[0]);
}

bool is_defined(const Value& v) { return !v.is(Kind::kUndefined); }
bool is_undefined(const Value& v) { return v.is(Kind::kUndefined); }
bool is_none(const Value& v) { return v.is(Kind::kNone); }
bool is_boolean(const Value& v) { return v.is(Kind::kBool); }
bool is_true(const Value& v) { return v.is(Kind::kBool) && v.as_bool(); }
bool is_false(const Value& v) { return v.is(Kind::kBool) && !v.as_bool(); }
bool is_integer(const Value& v) { return v.is(Kind::kInt) || v.is(Kind::kBigInt); }
bool is_float(const Value& v) { return v.is(Kind::kFloat); }
bool is_number(const Value& v) { return v.is_number() || v.is(Kind::kBigInt); }
bool is_string(const Value& v) { return v.is(Kind::kString); }
bool is_mapping(const Value& v) { return v.is(Kind::kDict); }
bool is_escaped(const Value& v) { return v.is(Kind::kString) && v.str().markup; }

bool is_iterable(const Value& v) {
  return iterable(v) || (v.is(Kind::kObject) && v.object()->type == ObjectType::kLoop);
}

bool is_sequence(const Value& v) {
  return v.is(Kind::kString) || v.is(Kind::kDict) || v.is(Kind::kUndefined) ||
         (v.is(Kind::kList) && v.list().flavor <= Flavor::kRange);
}

bool is_callable(const Value& v) {
  if (v.is(Kind::kUndefined)) return true;  // calling it raises its error
  if (!v.is(Kind::kObject)) return false;
  const ObjectType type = v.object()->type;
  return type != ObjectType::kNamespace && type != ObjectType::kGenerator &&
         type != ObjectType::kCycler;
}

bool remainder_is(Evaluator& e, const Value& value, const Value& divisor, std::int64_t wanted) {
  return equal(e.rt, arithmetic(e.rt, ExprKind::kMod, value, divisor), Value::integer(wanted));
}

bool is_odd(Evaluator& e, const Value& value, CallArgs& args) {
  const Bound bound("odd", args, {});
  return remainder_is(e, value, Value::integer(2), 1);
}

bool is_even(Evaluator& e, const Value& value, CallArgs& args) {
  const Bound bound("even", args, {});
  return remainder_is(e, value, Value::integer(2), 0);
}

bool is_divisibleby(Evaluator& e, const Value& value, CallArgs& args) {
  const Bound bound("divisibleby", args, {"num"}, 1);
  return remainder_is(e, value, bound[0], 0);
}

// str.isupper and str.islower: some cased character, and none of the other case.
bool all_cased(Evaluator& e, const Value& value, bool upper) {
  const Value string = to_string(e.rt, value);
  const std::string& text = string.str().bytes;
  e.rt.text(text.size());
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Point point = utf8::decode(text, at);
    at += point.size;
    if (!utf8::is_cased(point.code)) continue;
    if (upper ? !utf8::is_upper(point.code) : !utf8::is_lower(point.code)) return false;
    any = true;
  }
  return any;
}

bool is_lower(Evaluator& e, const Value& value, CallArgs& args) {
  const Bound bound("lower", args, {});
  return all_cased(e, value, false);
}

bool is_upper(Evaluator& e, const Value& value, CallArgs& args) {
  const Bound bound("upper", args, {});
  return all_cased(e, value, true);
}

bool is_sameas(Evaluator&, const Value& value, CallArgs& args) {
  const Bound bound("sameas", args, {"other"}, 1);
  const Value& other = bound[0];
  if (value.kind() != other.kind()) return false;
  if (value.is(Kind::kNone)) return true;
  if (value.is(Kind::kBool)) return value.as_bool() == other.as_bool();
  if (value.is(Kind::kObject)) return value.object() == other.object();
  fail_unsupported(cat({"'sameas' of ", type_name(value), " values"}));
}

bool is_filter(Evaluator&, const Value& value, CallArgs& args) {
  const Bound bound("filter", args, {});
  return value.is(Kind::kString) && find_filter(value.str().bytes) != nullptr;
}

bool is_test(Evaluator&, const Value& value, CallArgs& args) {
  const Bound bound("test", args, {});
  return value.is(Kind::kString) && find_test(value.str().bytes) != nullptr;
}

constexpr TestEntry kTests[] = {
    {"defined", simple<is_defined>},
    {"undefined", simple<is_undefined>},
    {"none", simple<is_none>},
    {"boolean", simple<is_boolean>},
    {"true", simple<is_true>},
    {"false", simple<is_false>},
    {"integer", simple<is_integer>},
    {"float", simple<is_float>},
    {"number", simple<is_number>},
    {"string", simple<is_string>},
    {"mapping", simple<is_mapping>},
    {"iterable", simple<is_iterable>},
    {"sequence", simple<is_sequence>},
    {"callable", simple<is_callable>},
    {"escaped", simple<is_escaped>},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisibleby},
    {"lower", is_lower},
    {"upper", is_upper},
    {"sameas", is_sameas},
    {"filter", is_filter},
    {"test", is_test},
    {"eq", comparison<CompareOp::kEq>},
    {"equalto", comparison<CompareOp::kEq>},
    {"==", comparison<CompareOp::kEq>},
    {"ne", comparison<CompareOp::kNe>},
    {"!=", comparison<CompareOp::kNe>},
    {"lt", comparison<CompareOp::kLt>},
    {"lessthan", comparison<CompareOp::kLt>},
    {"<", comparison<CompareOp::kLt>},
    {"le", comparison<CompareOp::kLe>},
    {"<=", comparison<CompareOp::kLe>},
    {"gt", comparison<CompareOp::kGt>},
    {"greaterthan", comparison<CompareOp::kGt>},
    {">", comparison<CompareOp::kGt>},
    {"ge", comparison<CompareOp::kGe>},
    {">=", comparison<CompareOp::kGe>},
    {"in", comparison<CompareOp::kIn>},
};

}  // namespace

const TestEntry* find_test(std::string_view name) {
  for (const TestEntry& entry : kTests) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace monolayer::jinja

#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/objects.h"
#include "text/jinja/text.h"

namespace monolayer::jinja {

namespace {

std::string quoted_type(const Value& value) { return cat({"'", type_name(value), "'"}); }

std::string_view symbol(CompareOp op) {
  switch (op) {
    case CompareOp::kLt:
      return "<";
    case CompareOp::kLe:
      return "<=";
    case CompareOp::kGt:
      return ">";
    default:
      return ">=";
  }
}

// Whether an ordering `op` holds between things that compare as -1, 0 or 1.
bool holds(CompareOp op, int order) {
  switch (op) {
    case CompareOp::kLt:
      return order < 0;
    case CompareOp::kLe:
      return order <= 0;
    case CompareOp::kGt:
      return order > 0;
    default:
      return order >= 0;
  }
}

bool same(const Value& a, const Value& b) {
  return a.kind() == b.kind() && a.identity() != nullptr && a.identity() == b.identity();
}

bool equal_lists(Runtime& rt, const ListData& a, const ListData& b) {
  if (a.flavor != b.flavor || a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(rt, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool equal_dicts(Runtime& rt, const DictData& a, const DictData& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.find(key);
    if (other == nullptr || !equal(rt, value, *other)) return false;
  }
  return true;
}

[[noreturn]] void overflow() { fail_unsupported("integers beyond 64 bits in arithmetic"); }

Value repeat(Runtime& rt, const Value& value, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  if (value.is(Kind::kString)) {
    TextBuilder out(rt);
    if (!value.str().bytes.empty()) {
      rt.step(1 + static_cast<std::uint64_t>(times) / 16);
      for (std::int64_t i = 0; i < times; ++i) out.append(value.str());
    }
    return out.finish(value.str().markup);
  }
  ListBuilder out(&rt);
  const ListData& list = value.list();
  if (!list.items.empty()) {
    for (std::int64_t i = 0; i < times; ++i) {
      for (const Value& item : list.items) out.add(item);
    }
  }
  return out.finish(list.flavor, list.untrusted);
}

bool is_sequence(const Value& value) {
  return value.is(Kind::kString) ||
         (value.is(Kind::kList) &&
          (value.list().flavor == Flavor::kList || value.list().flavor == Flavor::kTuple));
}

Value add_lists(Runtime& rt, const ListData& a, const ListData& b) {
  ListBuilder out(&rt);
  for (const Value& item : a.items) out.add(item);
  for (const Value& item : b.items) out.add(item);
  return out.finish(a.flavor, a.untrusted || b.untrusted);
}

Value add_strings(Runtime& rt, const Value& a, const Value& b) {
  TextBuilder out(rt);
  const bool markup = a.str().markup || b.str().markup;
  out.append(markup ? escape(rt, a).str() : a.str());
  out.append(markup ? escape(rt, b).str() : b.str());
  return out.finish(markup);
}

// Python's float division and remainder, which agree with each other.
void divmod(double x, double y, double* quotient, double* remainder) {
  double mod = std::fmod(x, y);
  double div = (x - mod) / y;
  if (mod != 0) {
    if ((y < 0) != (mod < 0)) {
      mod += y;
      div -= 1.0;
    }
  } else {
    mod = std::copysign(0.0, y);
  }
  if (div != 0) {
    *quotient = std::floor(div);
    if (div - *quotient > 0.5) *quotient += 1.0;
  } else {
    *quotient = std::copysign(0.0, x / y);
  }
  *remainder = mod;
}

std::int64_t integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow();
  }
  return result;
}

Value power(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer() && b.as_int() >= 0) {
    const std::int64_t base = a.as_int();
    if (base == 0 || base == 1) return Value::integer(b.as_int() == 0 ? 1 : base);
    if (base == -1) return Value::integer(b.as_int() % 2 == 0 ? 1 : -1);
    return Value::integer(integer_power(base, b.as_int()));
  }
  const double x = a.as_real();
  const double y = b.as_real();
  if (x == 0 && y < 0) fail("0.0 cannot be raised to a negative power");
  const double result = std::pow(x, y);
  if (std::isfinite(x) && std::isfinite(y)) {
    if (std::isnan(result)) fail_unsupported("complex numbers");
    if (std::isinf(result)) fail("numerical result out of range");
  }
  return Value::real(result);
}

Value real_arithmetic(ExprKind op, double x, double y) {
  double quotient = 0;
  double remainder = 0;
  switch (op) {
    case ExprKind::kAdd:
      return Value::real(x + y);
    case ExprKind::kSub:
      return Value::real(x - y);
    case ExprKind::kMul:
      return Value::real(x * y);
    case ExprKind::kDiv:
      if (y == 0) fail("division by zero");
      return Value::real(x / y);
    default:
      if (y == 0) fail("division by zero");
      divmod(x, y, &quotient, &remainder);
      return Value::real(op == ExprKind::kFloorDiv ? quotient : remainder);
  }
}

Value integer_arithmetic(ExprKind op, std::int64_t x, std::int64_t y) {
  std::int64_t result = 0;
  switch (op) {
    case ExprKind::kAdd:
      if (__builtin_add_overflow(x, y, &result)) overflow();
      return Value::integer(result);
    case ExprKind::kSub:
      if (__builtin_sub_overflow(x, y, &result)) overflow();
      return Value::integer(result);
    case ExprKind::kMul:
      if (__builtin_mul_overflow(x, y, &result)) overflow();
      return Value::integer(result);
    case ExprKind::kDiv:
      if (y == 0) fail("division by zero");
      return Value::real(static_cast<double>(x) / static_cast<double>(y));
    default:
      if (y == 0) fail("division by zero");
      if (y == -1) {  // the one quotient beyond 64 bits
        if (op == ExprKind::kMod) return Value::integer(0);
        if (__builtin_sub_overflow(std::int64_t{0}, x, &result)) overflow();
        return Value::integer(result);
      }
      const std::int64_t remainder = x % y;
      const bool adjust = remainder != 0 && (remainder < 0) != (y < 0);
      if (op == ExprKind::kMod) return Value::integer(adjust ? remainder + y : remainder);
      return Value::integer(x / y - (adjust ? 1 : 0));
  }
}

std::string_view symbol(ExprKind op) {
  switch (op) {
    case ExprKind::kAdd:
      return "+";
    case ExprKind::kSub:
      return "-";
    case ExprKind::kMul:
      return "*";
    case ExprKind::kDiv:
      return "/";
    case ExprKind::kFloorDiv:
      return "//";
    case ExprKind::kMod:
      return "%";
    default:
      return "**";
  }
}

}  // namespace

void require_defined(const Value& value) {
  if (value.is(Kind::kUndefined)) fail(value.message());
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_real() != 0;
    case Kind::kString:
      return !value.str().bytes.empty();
    case Kind::kList:
      return !value.list().items.empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    case Kind::kBigInt:
    case Kind::kObject:
      return true;
  }
  return false;
}

bool equal(Runtime& rt, const Value& a, const Value& b) {
  rt.step();
  if (same(a, b)) return true;
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kString:
      rt.text(a.str().bytes.size());
      return a.str().bytes == b.str().bytes;
    case Kind::kBigInt:
      return a.digits() == b.digits();
    case Kind::kList:
      return equal_lists(rt, a.list(), b.list());
    case Kind::kDict:
      return equal_dicts(rt, a.dict(), b.dict());
    case Kind::kObject:
      return a.object() == b.object();
    default:
      return true;  // undefined, none
  }
}

bool ordered(Runtime& rt, CompareOp op, const Value& a, const Value& b) {
  rt.step();
  require_defined(a);
  require_defined(b);
  if (a.is_number() && b.is_number()) {
    const int order = compare_numbers(a, b);
    return order != 2 && holds(op, order);
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    rt.text(std::min(a.str().bytes.size(), b.str().bytes.size()));
    return holds(op, a.str().bytes.compare(b.str().bytes));
  }
  if (a.is(Kind::kList) && b.is(Kind::kList) && a.list().flavor == b.list().flavor &&
      is_sequence(a)) {
    const auto& x = a.list().items;
    const auto& y = b.list().items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(rt, x[i], y[i])) return ordered(rt, op, x[i], y[i]);
    }
    return holds(op, x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0);
  }
  if (a.is(Kind::kBigInt) || b.is(Kind::kBigInt)) overflow();
  fail(cat({"'", symbol(op), "' not supported between instances of ", quoted_type(a), " and ",
            quoted_type(b)}));
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  rt.step();
  if (container.is(Kind::kString)) {
    if (!item.is(Kind::kString)) {
      require_defined(item);
      fail(cat({"'in <string>' requires string as left operand, not ", type_name(item)}));
    }
    return find(rt, container.str().bytes, item.str().bytes, 0) != std::string_view::npos;
  }
  if (container.is(Kind::kDict)) {
    if (!hashable(item)) fail(cat({"unhashable type: ", quoted_type(item)}));
    rt.step(container.dict().entries.size() < 16 ? container.dict().entries.size() : 16);
    return container.dict().find(item) != nullptr;
  }
  if (!iterable(container)) {
    fail(cat({"argument of type ", quoted_type(container), " is not iterable"}));
  }
  Cursor cursor(rt, container);
  Value candidate;
  while (cursor.next(&candidate)) {
    if (equal(rt, candidate, item)) return true;
  }
  return false;
}

bool compare(Runtime& rt, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return equal(rt, a, b);
    case CompareOp::kNe:
      return !equal(rt, a, b);
    case CompareOp::kIn:
      return contains(rt, b, a);
    case CompareOp::kNotIn:
      return !contains(rt, b, a);
    default:
      return ordered(rt, op, a, b);
  }
}

Value arithmetic(Runtime& rt, ExprKind op, const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  if (op == ExprKind::kMod && a.is(Kind::kString)) {
    fail_unsupported("string formatting with %");
  }
  if (a.is_number() && b.is_number()) {
    if (op == ExprKind::kPow) return power(a, b);
    if (a.is(Kind::kFloat) || b.is(Kind::kFloat)) {
      return real_arithmetic(op, a.as_real(), b.as_real());
    }
    return integer_arithmetic(op, a.as_int(), b.as_int());
  }
  if (op == ExprKind::kAdd) {
    if (a.is(Kind::kString) && b.is(Kind::kString)) return add_strings(rt, a, b);
    if (a.is(Kind::kList) && b.is(Kind::kList) && a.list().flavor == b.list().flavor &&
        is_sequence(a)) {
      return add_lists(rt, a.list(), b.list());
    }
  }
  if (op == ExprKind::kMul) {
    if (is_sequence(a) && b.is_integer()) return repeat(rt, a, b.as_int());
    if (is_sequence(b) && a.is_integer()) return repeat(rt, b, a.as_int());
  }
  if (a.is(Kind::kBigInt) || b.is(Kind::kBigInt)) overflow();
  fail(cat({"unsupported operand types for ", symbol(op), ": ", quoted_type(a), " and ",
            quoted_type(b)}));
}

Value negative(const Value& value) {
  require_defined(value);
  if (value.is(Kind::kFloat)) return Value::real(-value.as_real());
  if (value.is(Kind::kBigInt)) overflow();
  if (!value.is_integer()) fail(cat({"bad operand type for unary -: ", quoted_type(value)}));
  return integer_arithmetic(ExprKind::kSub, 0, value.as_int());
}

Value positive(const Value& value) {
  require_defined(value);
  if (value.is(Kind::kFloat) || value.is(Kind::kBigInt)) return value;
  if (!value.is_integer()) fail(cat({"bad operand type for unary +: ", quoted_type(value)}));
  return Value::integer(value.as_int());
}

}  // namespace monolayer::jinja

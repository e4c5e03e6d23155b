#include <limits>
#include <utility>

#include "text/jinja/builtins.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/format.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"

namespace monolayer::jinja {

Value Evaluator::evaluate(const Expr& expr, Frame& frame) {
  const DepthGuard guard(rt);
  rt.step();
  rt.line = expr.line;
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName: {
      Value value = evaluate_name(expr, frame);
      if (value.is(Kind::kObject) && value.object()->type == ObjectType::kLoop) {
        static_cast<LoopState*>(value.object())->escaped = true;
      }
      return value;
    }
    case ExprKind::kAttrTarget:
      break;
    case ExprKind::kList:
    case ExprKind::kTuple:
      return evaluate_sequence(expr, frame);
    case ExprKind::kDict:
      return evaluate_dict(expr, frame);
    case ExprKind::kNegative:
      return negative(evaluate(*expr.args[0], frame));
    case ExprKind::kPositive:
      return positive(evaluate(*expr.args[0], frame));
    case ExprKind::kNot:
      return Value::boolean(!truth(evaluate(*expr.args[0], frame)));
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = evaluate(*expr.args[0], frame);
      if (truth(left) == (expr.kind == ExprKind::kOr)) return left;
      return evaluate(*expr.args[1], frame);
    }
    case ExprKind::kAdd:
    case ExprKind::kSub:
    case ExprKind::kMul:
    case ExprKind::kDiv:
    case ExprKind::kFloorDiv:
    case ExprKind::kMod:
    case ExprKind::kPow: {
      const Value left = evaluate(*expr.args[0], frame);
      const Value right = evaluate(*expr.args[1], frame);
      rt.line = expr.line;
      return arithmetic(rt, expr.kind, left, right);
    }
    case ExprKind::kConcat:
      return evaluate_concat(expr, frame);
    case ExprKind::kCompare:
      return evaluate_compare(expr, frame);
    case ExprKind::kConditional:
      if (truth(evaluate(*expr.args[0], frame))) return evaluate(*expr.args[1], frame);
      if (expr.args[2]) return evaluate(*expr.args[2], frame);
      return Value::undefined(
          "the inline if-expression evaluated to false and no else section was defined");
    case ExprKind::kAttribute: {
      const Value object = evaluate_base(*expr.args[0], frame);
      rt.line = expr.line;
      return attribute(object, expr.name);
    }
    case ExprKind::kItem: {
      const Value object = evaluate(*expr.args[0], frame);
      const Value key = evaluate(*expr.args[1], frame);
      rt.line = expr.line;
      return item(object, key);
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr, frame);
    case ExprKind::kCall:
      return evaluate_call(expr, frame, nullptr);
    case ExprKind::kFilter:
      return evaluate_filter(expr, frame, nullptr);
    case ExprKind::kTest:
      return evaluate_test(expr, frame);
  }
  return {};
}

// What an attribute is read from or what is called: `loop` does not escape this way.
Value Evaluator::evaluate_base(const Expr& expr, Frame& frame) {
  if (expr.kind != ExprKind::kName) return evaluate(expr, frame);
  rt.step();
  rt.line = expr.line;
  return evaluate_name(expr, frame);
}

Value Evaluator::evaluate_name(const Expr& expr, Frame& frame) {
  const Value& value = variable(frame, expr.slot);
  if (value.is(Kind::kMissing)) return Value::undefined(cat({"'", expr.name, "' is undefined"}));
  return value;
}

Value Evaluator::evaluate_sequence(const Expr& expr, Frame& frame) {
  ListBuilder out(&rt);
  for (const ExprPtr& arg : expr.args) out.add(evaluate(*arg, frame));
  return out.finish(expr.kind == ExprKind::kTuple ? Flavor::kTuple : Flavor::kList);
}

Value Evaluator::evaluate_dict(const Expr& expr, Frame& frame) {
  DictBuilder out(&rt);
  for (std::size_t i = 0; i + 1 < expr.args.size(); i += 2) {
    Value key = evaluate(*expr.args[i], frame);
    out.add(std::move(key), evaluate(*expr.args[i + 1], frame));
  }
  return out.finish();
}

Value Evaluator::evaluate_concat(const Expr& expr, Frame& frame) {
  TextBuilder out(rt);
  for (const ExprPtr& arg : expr.args) append_str(rt, out, evaluate(*arg, frame));
  return out.finish();
}

Value Evaluator::evaluate_compare(const Expr& expr, Frame& frame) {
  Value left = evaluate(*expr.args[0], frame);
  for (std::size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = evaluate(*expr.args[i + 1], frame);
    rt.line = expr.line;
    if (!compare(rt, expr.ops[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

namespace {

// The bounds of object[start:stop:step] for a sequence of `length`, as Python clamps them.
struct SliceBounds {
  std::int64_t start, stop, step;
};

SliceBounds slice_bounds(std::int64_t length, const Value* start, const Value* stop,
                         const Value* step) {
  const auto integer = [](const Value* value) {
    if (!value->is_integer()) {
      require_defined(*value);
      fail("slice indices must be integers or None");
    }
    return value->as_int();
  };
  SliceBounds bounds{0, 0, step == nullptr ? 1 : integer(step)};
  if (bounds.step == 0) fail("slice step cannot be zero");
  // Beyond the length a step's size makes no difference, and -step must not overflow.
  bounds.step = std::max(std::min(bounds.step, length + 1), -length - 1);
  const bool forward = bounds.step > 0;
  const std::int64_t low = forward ? 0 : -1;
  const std::int64_t high = forward ? length : length - 1;
  const auto clamp = [&](const Value* value, std::int64_t fallback) {
    if (value == nullptr) return fallback;
    std::int64_t at = integer(value);
    if (at < 0) at = at < -length ? low : at + length;
    return std::max(low, std::min(at, high));
  };
  bounds.start = clamp(start, forward ? low : high);
  bounds.stop = clamp(stop, forward ? high : low);
  return bounds;
}

}  // namespace

Value Evaluator::evaluate_slice(const Expr& expr, Frame& frame) {
  const Value object = evaluate(*expr.args[0], frame);
  Value values[3];
  const Value* bounds[3] = {nullptr, nullptr, nullptr};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!expr.args[i + 1]) continue;
    values[i] = evaluate(*expr.args[i + 1], frame);
    if (!values[i].is(Kind::kNone)) bounds[i] = &values[i];
  }
  rt.line = expr.line;
  require_defined(object);
  if (object.is(Kind::kString)) {
    const auto length = static_cast<std::int64_t>(object.str().code_points);
    const SliceBounds b = slice_bounds(length, bounds[0], bounds[1], bounds[2]);
    return slice_string(rt, object, b.start, b.stop, b.step);
  }
  if (!object.is(Kind::kList) || object.list().flavor > Flavor::kRange) {
    fail(cat({"'", type_name(object), "' object cannot be sliced"}));
  }
  const ListData& list = object.list();
  const SliceBounds b =
      slice_bounds(static_cast<std::int64_t>(list.items.size()), bounds[0], bounds[1], bounds[2]);
  ListBuilder out(&rt);
  for (std::int64_t i = b.start; b.step > 0 ? i < b.stop : i > b.stop; i += b.step) {
    out.add(list.items[static_cast<std::size_t>(i)]);
  }
  if (list.flavor != Flavor::kRange) return out.finish(list.flavor, list.untrusted);
  auto range = std::make_shared<ListData>();
  range->items = std::move(out.items());
  range->flavor = Flavor::kRange;
  range->start = list.start + b.start * list.step;
  range->stop = list.start + b.stop * list.step;
  range->step = list.step * b.step;
  return Value::list(std::move(range));
}

void Evaluator::evaluate_arguments(const Expr& expr, std::size_t first, Frame& frame,
                                   CallArgs& args) {
  for (std::size_t i = first; i < expr.args.size(); ++i) {
    args.positional.push_back(evaluate(*expr.args[i], frame));
  }
  if (expr.star) {
    Cursor cursor(rt, evaluate(*expr.star, frame));
    Value value;
    while (cursor.next(&value)) args.positional.push_back(value);
  }
  for (const Keyword& keyword : expr.keywords) {
    args.named.emplace_back(keyword.name, evaluate(*keyword.value, frame));
  }
  if (!expr.star_star) return;
  const Value named = evaluate(*expr.star_star, frame);
  if (!named.is(Kind::kDict)) {
    fail(cat({"argument after ** must be a mapping, not ", type_name(named)}));
  }
  for (const auto& [key, value] : named.dict().entries) {
    rt.step(1 + args.named.size() / 8);
    if (!key.is(Kind::kString)) fail("keywords must be strings");
    for (const auto& [name, other] : args.named) {
      if (name == key.str().bytes) fail(cat({"multiple values for keyword argument '", name, "'"}));
    }
    args.named.emplace_back(key.str().bytes, value);
  }
}

Value Evaluator::evaluate_filter(const Expr& expr, Frame& frame, const Value* body) {
  // In a block's chain of filters the innermost has no input expression: it gets the body.
  const Value input = !expr.args[0] ? *body
                      : body != nullptr && expr.args[0]->kind == ExprKind::kFilter
                          ? evaluate_filter(*expr.args[0], frame, body)
                          : evaluate(*expr.args[0], frame);
  CallArgs args;
  evaluate_arguments(expr, 1, frame, args);
  rt.line = expr.line;
  if (expr.filter == nullptr)
    fail_unsupported(cat({"no filter named '", expr.name, "' is supported"}));
  return expr.filter->run(*this, input, args);
}

Value Evaluator::evaluate_test(const Expr& expr, Frame& frame) {
  const Value input = evaluate(*expr.args[0], frame);
  CallArgs args;
  evaluate_arguments(expr, 1, frame, args);
  rt.line = expr.line;
  if (expr.test == nullptr) fail_unsupported(cat({"no test named '", expr.name, "' is supported"}));
  return Value::boolean(expr.test->run(*this, input, args));
}

}  // namespace monolayer::jinja

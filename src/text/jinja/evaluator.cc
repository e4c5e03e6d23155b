#include "text/jinja/evaluator.h"

#include <utility>

#include "text/jinja/activation.h"
#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"

namespace monolayer::jinja {

Evaluator::Evaluator(const Limits& limits, const Value& variables,
                     const std::optional<std::tm>& now)
    : rt(limits), variables_(variables), now_(now) {}

Evaluator::~Evaluator() = default;

Value Evaluator::run(const Body& body, const FrameLayout& layout) {
  const Activation scope(*this, nullptr, layout);
  TextBuilder out(rt);
  execute(body, scope.frame(), out);
  if (out.size() > rt.limits.output_bytes) {
    fail_limit(cat({"the text is longer than ", std::to_string(rt.limits.output_bytes), " bytes"}));
  }
  return out.finish();
}

Frame* Evaluator::acquire() {
  if (!free_frames_.empty()) {
    Frame* frame = free_frames_.back();
    free_frames_.pop_back();
    return frame;
  }
  frames_.push_back(std::make_unique<Frame>());
  return frames_.back().get();
}

// A kept frame of a macro keeps its variables, other kept frames lose them, as in Jinja.
void Evaluator::release(Frame* frame, bool clear) {
  if (frame->kept) {
    if (clear) frame->slots.assign(frame->slots.size(), Value::missing());
    return;
  }
  frame->slots.clear();
  free_frames_.push_back(frame);
}

// Sets a frame's variables as its layout says; parameters keep what their setter gave them.
void Evaluator::enter(Frame& frame, const FrameLayout& layout) {
  for (std::size_t i = 0; i < layout.slots.size(); ++i) {
    const Load& load = layout.slots[i];
    switch (load.from) {
      case Load::From::kNothing:
        frame.slots[i] = Value::missing();
        break;
      case Load::From::kParameter:
        break;
      case Load::From::kContext:
        frame.slots[i] = from_context(load.name);
        break;
      case Load::From::kOuter:
        frame.slots[i] = variable(frame, load.outer);
        break;
    }
  }
  rt.step(layout.slots.size() / 4);
}

// A macro defined in `frame` may outlive it.
void Evaluator::keep(Frame* frame) {
  for (; frame != nullptr && !frame->kept; frame = frame->outer) {
    rt.meter.charge(sizeof(Frame) + frame->slots.size() * sizeof(Value));
    frame->kept = true;
  }
}

Value& Evaluator::variable(Frame& frame, const Slot& slot) {
  Frame* at = &frame;
  for (int i = 0; i < slot.hops; ++i) at = at->outer;
  return at->slots[static_cast<std::size_t>(slot.index)];
}

Value Evaluator::from_context(const std::string& name) const {
  if (variables_.is(Kind::kDict)) {
    if (const Value* value = variables_.dict().find(std::string_view(name))) return *value;
  }
  return find_global(name);
}

Evaluator::Flow Evaluator::execute(const Body& body, Frame& frame, TextBuilder& out) {
  for (const auto& stmt : body) {
    if (const Flow flow = execute(*stmt, frame, out); flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::execute(const Stmt& stmt, Frame& frame, TextBuilder& out) {
  const DepthGuard guard(rt);
  rt.line = stmt.line;
  rt.step();
  switch (stmt.kind) {
    case StmtKind::kOutput:
      for (const ExprPtr& item : stmt.items) {
        append_str(rt, out, evaluate(*item, frame));
        if (out.size() > rt.limits.output_bytes) {
          fail_limit(
              cat({"the text is longer than ", std::to_string(rt.limits.output_bytes), " bytes"}));
        }
      }
      return Flow::kNormal;
    case StmtKind::kIf:
      return execute_if(stmt, frame, out);
    case StmtKind::kFor:
      return execute_for(stmt, frame, out);
    case StmtKind::kSet:
      assign(*stmt.target, evaluate(*stmt.value, frame), frame);
      return Flow::kNormal;
    case StmtKind::kSetBlock:
      return execute_set_block(stmt, frame);
    case StmtKind::kMacro:
      keep(&frame);
      variable(frame, stmt.slot) = Value::object(make<Macro>(stmt.macro.get(), &frame));
      return Flow::kNormal;
    case StmtKind::kCallBlock:
      execute_call_block(stmt, frame, out);
      return Flow::kNormal;
    case StmtKind::kFilterBlock:
      return execute_filter_block(stmt, frame, out);
    case StmtKind::kWith:
      return execute_with(stmt, frame, out);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::execute_if(const Stmt& stmt, Frame& frame, TextBuilder& out) {
  for (const Branch& branch : stmt.branches) {
    if (truth(evaluate(*branch.test, frame))) return execute(branch.body, frame, out);
  }
  return execute(stmt.alternative, frame, out);
}

Evaluator::Flow Evaluator::execute_set_block(const Stmt& stmt, Frame& frame) {
  const Activation scope(*this, &frame, stmt.frame);
  TextBuilder captured(rt);
  const Flow flow = execute(stmt.body, scope.frame(), captured);
  if (flow != Flow::kNormal) return flow;
  Value text = captured.finish();
  if (stmt.value) text = evaluate_filter(*stmt.value, scope.frame(), &text);
  assign(*stmt.target, std::move(text), frame);
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::execute_filter_block(const Stmt& stmt, Frame& frame, TextBuilder& out) {
  const Activation scope(*this, &frame, stmt.frame);
  TextBuilder captured(rt);
  const Flow flow = execute(stmt.body, scope.frame(), captured);
  if (flow != Flow::kNormal) return flow;
  const Value text = captured.finish();
  append_text(evaluate_filter(*stmt.value, scope.frame(), &text), out);
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::execute_with(const Stmt& stmt, Frame& frame, TextBuilder& out) {
  const Activation scope(*this, &frame, stmt.frame);
  for (std::size_t i = 0; i < stmt.targets.size(); ++i) {
    assign(*stmt.targets[i], evaluate(*stmt.items[i], frame), scope.frame());
  }
  return execute(stmt.body, scope.frame(), out);
}

void Evaluator::execute_call_block(const Stmt& stmt, Frame& frame, TextBuilder& out) {
  keep(&frame);
  const Value caller = Value::object(make<Macro>(stmt.macro.get(), &frame));
  if (stmt.value) {
    append_text(evaluate_call(*stmt.value, frame, &caller), out);
    return;
  }
  CallArgs none;  // a generation block
  append_text(call(caller, none), out);
}

// Jinja writes the result of a filter or call block without str().
void Evaluator::append_text(const Value& value, TextBuilder& out) {
  if (!value.is(Kind::kString)) {
    fail(cat({"the block gives ", type_name(value), ", not str"}));
  }
  out.append(value.str());
}

void Evaluator::assign(const Expr& target, Value value, Frame& frame) {
  switch (target.kind) {
    case ExprKind::kName:
      variable(frame, target.slot) = std::move(value);
      return;
    case ExprKind::kAttrTarget: {
      const Value& object = variable(frame, target.slot);
      if (!object.is(Kind::kObject) || object.object()->type != ObjectType::kNamespace) {
        fail(cat({"cannot assign attribute on non-namespace object '", target.name, "'"}));
      }
      auto& space = *static_cast<Namespace*>(object.object());
      rt.step(1 + space.attributes.size() / 8);
      if (Value* place = space.find(target.constant.str().bytes)) {
        *place = std::move(value);
        return;
      }
      rt.meter.charge(2 * sizeof(Value));
      space.attributes.emplace_back(target.constant, std::move(value));
      return;
    }
    default:
      break;
  }
  // A tuple of targets.
  Cursor cursor(rt, std::move(value));
  Value item;
  for (std::size_t i = 0; i < target.args.size(); ++i) {
    if (!cursor.next(&item)) {
      fail(cat({"not enough values to unpack (expected ", std::to_string(target.args.size()),
                ", got ", std::to_string(i), ")"}));
    }
    assign(*target.args[i], item, frame);
  }
  if (cursor.next(&item)) {
    fail(cat({"too many values to unpack (expected ", std::to_string(target.args.size()), ")"}));
  }
}

}  // namespace monolayer::jinja

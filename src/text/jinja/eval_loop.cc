// for: items are drawn one by one, because a loop's condition may depend on what its body did.
#include <utility>

#include "text/jinja/activation.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"

namespace monolayer::jinja {

Evaluator::Flow Evaluator::execute_for(const Stmt& stmt, Frame& frame, TextBuilder& out) {
  Value items = evaluate(*stmt.value, frame);
  if (!stmt.recursive) return run_loop(stmt, frame, std::move(items), 0, out);
  run_loop(stmt, frame, std::move(items), 0, out);
  return Flow::kNormal;
}

void Evaluator::release(LoopState* loop) {
  if (loop->escaped) return;
  loop->reset();
  free_loops_.push_back(loop);
}

Evaluator::Flow Evaluator::run_loop(const Stmt& stmt, Frame& frame, Value items, int depth0,
                                    TextBuilder& out) {
  const int line = rt.line;
  LoopState* loop = nullptr;
  if (free_loops_.empty()) {
    rt.meter.charge(sizeof(LoopState));
    loops_.push_back(std::make_unique<LoopState>());
    loop = loops_.back().get();
  } else {
    loop = free_loops_.back();
    free_loops_.pop_back();
  }
  struct Release {
    Evaluator& evaluator;
    LoopState* loop;
    ~Release() { evaluator.release(loop); }
  } const release_loop{*this, loop};

  loop->stmt = &stmt;
  loop->frame = &frame;
  loop->depth0 = depth0;
  loop->cursor.emplace(rt, std::move(items));
  if (!stmt.condition) loop->length = loop->cursor->length();
  const Activation scope(*this, &frame, stmt.frame, {.enter_now = false, .clear = !stmt.recursive});
  std::optional<Activation> condition;
  if (stmt.condition) {
    condition.emplace(*this, &frame, stmt.condition_frame);
    loop->condition = &condition->frame();
  }

  bool completed = false;  // some iteration ran to the end of the body
  Flow flow = Flow::kNormal;
  Value item;
  while (true) {
    if (loop->after.is(Kind::kMissing)) {
      if (!fetch(*loop, &item)) break;
    } else {
      item = std::exchange(loop->after, Value::missing());
    }
    ++loop->index0;
    loop->before = std::exchange(loop->current, item);
    assign(*stmt.target, std::move(item), scope.frame());
    if (stmt.loop_slot >= 0) {
      scope.frame().slots[static_cast<std::size_t>(stmt.loop_slot)] = Value::object(loop);
    }
    enter(scope.frame(), stmt.frame);
    flow = execute(stmt.body, scope.frame(), out);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) completed = true;
    rt.line = line;
  }
  loop->condition = nullptr;
  // As Jinja has it: after a loop whose every iteration was cut short, the else branch runs too.
  if (completed || stmt.alternative.empty()) return Flow::kNormal;
  const Activation alternative(*this, &frame, stmt.alternative_frame);
  return execute(stmt.alternative, alternative.frame(), out);
}

// The targets' values as one item: what a conditional loop passes on to its body.
Value Evaluator::packed(const Expr& target, Frame& frame) {
  if (target.kind == ExprKind::kName) return variable(frame, target.slot);
  ListBuilder items(&rt);
  for (const ExprPtr& part : target.args) items.add(packed(*part, frame));
  return items.finish(Flavor::kTuple);
}

// The next item that passes the loop's condition.
bool Evaluator::fetch(LoopState& loop, Value* item) {
  if (loop.drained) {
    if (loop.rest_at == loop.rest.size()) return false;
    *item = std::exchange(loop.rest[loop.rest_at++], Value());
    return true;
  }
  while (loop.cursor->next(item)) {
    if (!loop.stmt->condition) return true;
    if (loop.condition == nullptr) return false;  // the loop is over
    assign(*loop.stmt->target, *item, *loop.condition);
    if (!truth(evaluate(*loop.stmt->condition, *loop.condition))) continue;
    *item = packed(*loop.stmt->target, *loop.condition);
    return true;
  }
  return false;
}

bool Evaluator::peek(LoopState& loop) {
  if (!loop.after.is(Kind::kMissing)) return true;
  Value item;
  if (!fetch(loop, &item)) return false;
  loop.after = std::move(item);
  return true;
}

std::int64_t Evaluator::loop_length(LoopState& loop) {
  if (loop.length >= 0) return loop.length;
  std::vector<Value> rest;
  Value item;
  while (fetch(loop, &item)) {
    rt.meter.charge(sizeof(Value) * 2);  // for the rest of the render
    rest.push_back(std::move(item));
  }
  loop.rest = std::move(rest);
  loop.rest_at = 0;
  loop.drained = true;
  loop.length = static_cast<std::int64_t>(loop.rest.size()) + loop.index0 + 1 +
                (loop.after.is(Kind::kMissing) ? 0 : 1);
  return loop.length;
}

namespace {

Value loop_cycle(Evaluator&, const Value& self, CallArgs& args) {
  if (args.positional.empty()) fail("no items for cycling given");
  if (!args.named.empty()) fail("loop.cycle takes no keyword arguments");
  const auto index = static_cast<std::size_t>(static_cast<LoopState*>(self.object())->index0);
  return args.positional[index % args.positional.size()];
}

Value loop_changed(Evaluator& evaluator, const Value& self, CallArgs& args) {
  auto& loop = *static_cast<LoopState*>(self.object());
  if (!args.named.empty()) fail("loop.changed takes no keyword arguments");
  ListBuilder values(&evaluator.rt);
  for (const Value& value : args.positional) values.add(value);
  Value key = values.finish(Flavor::kTuple);
  if (loop.changed.is(Kind::kList) && equal(evaluator.rt, loop.changed, key)) {
    return Value::boolean(false);
  }
  loop.changed = std::move(key);
  return Value::boolean(true);
}

}  // namespace

MethodFn Evaluator::loop_method(const Value& object, const std::string& name) {
  if (object.object()->type != ObjectType::kLoop) return nullptr;
  return name == "cycle" ? loop_cycle : name == "changed" ? loop_changed : nullptr;
}

Value Evaluator::loop_attribute(LoopState& loop, const std::string& name) {
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(!peek(loop));
  if (name == "length") return Value::integer(loop_length(loop));
  if (name == "revindex") return Value::integer(loop_length(loop) - loop.index0);
  if (name == "revindex0") return Value::integer(loop_length(loop) - loop.index0 - 1);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "previtem") {
    return loop.index0 == 0 ? Value::undefined("there is no previous item") : loop.before;
  }
  if (name == "nextitem") {
    return peek(loop) ? loop.after : Value::undefined("there is no next item");
  }
  const Value self = Value::object(&loop);
  if (const MethodFn method = loop_method(self, name)) {
    loop.escaped = true;
    return Value::object(make<Method>(self, method));
  }
  return Value::undefined(cat({"'LoopContext object' has no attribute '", name, "'"}));
}

// loop(items) in a recursive loop: the text of the same loop over other items.
Value Evaluator::loop_call(LoopState& loop, CallArgs& args) {
  if (!loop.stmt->recursive) {
    fail("the loop must have the 'recursive' marker to be called recursively");
  }
  if (args.positional.size() != 1 || !args.named.empty()) {
    fail("a recursive loop takes one argument");
  }
  const DepthGuard guard(rt);
  TextBuilder out(rt);
  run_loop(*loop.stmt, *loop.frame, args.positional[0], loop.depth0 + 1, out);
  return out.finish();
}

}  // namespace monolayer::jinja

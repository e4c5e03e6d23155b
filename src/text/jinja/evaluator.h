// Runs a bound syntax tree. One Evaluator is one render; it owns every mutable object of it.
// Statements are in evaluator.cc, expressions in eval_expr.cc, loops in eval_loop.cc, attributes
// and calls in eval_call.cc.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/objects.h"
#include "text/jinja/text.h"

namespace monolayer::jinja {

struct LoopState;

class Evaluator {
 public:
  // `variables` must be a dict; `now` is what strftime_now formats (absent: the local time).
  Evaluator(const Limits& limits, const Value& variables, const std::optional<std::tm>& now);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // The whole template; the rendered text.
  Value run(const Body& body, const FrameLayout& layout);

  Runtime rt;

  // For builtins.
  // object.name; undefined if there is none.
  Value attribute(const Value& object, const std::string& name);
  // object[key]; undefined if there is none.
  Value item(const Value& object, const Value& key);
  Value call(const Value& callee, CallArgs& args);
  Value apply_filter(const std::string& name, const Value& input, CallArgs& args);
  bool apply_test(const std::string& name, const Value& input, CallArgs& args);
  // A lazy sequence of what `produce` adds. It runs at once; if it fails, the failure is raised
  // where the sequence is iterated that far, as it would be if it ran then.
  template <typename Produce>
  Value generator(const Produce& produce) {
    ListBuilder items(&rt);
    std::optional<Failure> failure;
    try {
      produce(items);
    } catch (const Failure& caught) {
      if (caught.code == Code::kResourceExhausted) throw;
      failure = caught;
      failure->line = rt.line;
    }
    auto* result = make<Generator>(items.finish());
    result->failure = std::move(failure);
    return Value::object(result);
  }
  const std::optional<std::tm>& now() const { return now_; }
  // Makes an object of this render.
  template <typename T, typename... Args>
  T* make(Args&&... args) {
    rt.meter.charge(sizeof(T) + 64);
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* result = object.get();
    objects_.push_back(std::move(object));
    return result;
  }

 private:
  enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };
  class Activation;  // a frame for the time of a scope

  // Statements.
  Flow execute(const Body& body, Frame& frame, TextBuilder& out);
  Flow execute(const Stmt& stmt, Frame& frame, TextBuilder& out);
  Flow execute_if(const Stmt& stmt, Frame& frame, TextBuilder& out);
  Flow execute_set_block(const Stmt& stmt, Frame& frame);
  Flow execute_filter_block(const Stmt& stmt, Frame& frame, TextBuilder& out);
  Flow execute_with(const Stmt& stmt, Frame& frame, TextBuilder& out);
  void execute_call_block(const Stmt& stmt, Frame& frame, TextBuilder& out);
  static void append_text(const Value& value, TextBuilder& out);
  void assign(const Expr& target, Value value, Frame& frame);

  // Frames.
  Frame* acquire();
  void release(Frame* frame, bool clear);
  void enter(Frame& frame, const FrameLayout& layout);
  void keep(Frame* frame);
  static Value& variable(Frame& frame, const Slot& slot);
  Value from_context(const std::string& name) const;

  // Loops.
  Flow execute_for(const Stmt& stmt, Frame& frame, TextBuilder& out);
  Flow run_loop(const Stmt& stmt, Frame& frame, Value iterable, int depth0, TextBuilder& out);
  bool fetch(LoopState& loop, Value* item);
  Value packed(const Expr& target, Frame& frame);
  bool peek(LoopState& loop);
  std::int64_t loop_length(LoopState& loop);
  Value loop_attribute(LoopState& loop, const std::string& name);
  // loop.cycle and loop.changed; null for other names and objects.
  static MethodFn loop_method(const Value& object, const std::string& name);
  Value loop_call(LoopState& loop, CallArgs& args);
  void release(LoopState* loop);

  // Expressions.
  Value evaluate(const Expr& expr, Frame& frame);
  Value evaluate_base(const Expr& expr, Frame& frame);
  Value evaluate_name(const Expr& expr, Frame& frame);
  Value evaluate_sequence(const Expr& expr, Frame& frame);
  Value evaluate_dict(const Expr& expr, Frame& frame);
  Value evaluate_concat(const Expr& expr, Frame& frame);
  Value evaluate_compare(const Expr& expr, Frame& frame);
  Value evaluate_slice(const Expr& expr, Frame& frame);
  Value evaluate_call(const Expr& expr, Frame& frame, const Value* caller);
  Value evaluate_filter(const Expr& expr, Frame& frame, const Value* body);
  Value evaluate_test(const Expr& expr, Frame& frame);
  // Positional arguments from args[first] on, keywords and stars.
  void evaluate_arguments(const Expr& expr, std::size_t first, Frame& frame, CallArgs& args);

  // Attributes and calls.
  bool own_attribute(const Value& object, const std::string& name, Value* result);
  bool own_item(const Value& object, const Value& key, Value* result);
  Value object_attribute(Object* object, const std::string& name);
  Value call_macro(const Macro& macro, CallArgs& args);

  const Value variables_;
  const std::optional<std::tm> now_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<Frame*> free_frames_;
  std::vector<std::unique_ptr<LoopState>> loops_;
  std::vector<LoopState*> free_loops_;
};

}  // namespace monolayer::jinja

#include "text/jinja/resolve.h"

#include <unordered_map>
#include <utility>

#include "text/jinja/builtins.h"
#include "text/jinja/names.h"

namespace monolayer::jinja {

namespace {

// What is known of one name in one frame.
struct Symbol {
  bool present = false;  // the frame has a variable of this name
  bool stored = false;
  Load load;
};

class Scope {
 public:
  explicit Scope(Scope* parent) : parent_(parent) {}

  // The variable a name refers to from here; index -1 if nobody has one.
  Slot find(const std::string& name) const {
    Slot slot;
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_, ++slot.hops) {
      const auto place = scope->index_.find(name);
      if (place == scope->index_.end() || !scope->symbols_[place->second].present) continue;
      slot.index = static_cast<int>(place->second);
      return slot;
    }
    return {};
  }

  void store(const std::string& name) {
    const std::size_t index = index_of(name);
    Symbol symbol = symbols_[index];
    symbol.stored = true;
    if (!symbol.present) {
      symbol.present = true;
      symbol.load = initial(name, Load::From::kNothing);
    }
    set(index, std::move(symbol));
  }

  int declare_parameter(const std::string& name) {
    const std::size_t index = index_of(name);
    set(index, {true, true, {Load::From::kParameter, name, {}}});
    return static_cast<int>(index);
  }

  void load(const std::string& name) {
    if (find(name).index >= 0) return;
    const std::size_t index = index_of(name);
    Symbol symbol = symbols_[index];
    symbol.present = true;
    symbol.load = {Load::From::kContext, name, {}};
    set(index, std::move(symbol));
  }

  // A branch sees the frame as it was before the if; what its branches stored or read is merged
  // afterwards. `visit` runs one branch; the result is what it changed.
  using Changes = std::vector<std::pair<std::size_t, Symbol>>;
  template <typename Visit>
  Changes branch(const Visit& visit) {
    const std::size_t mark = journal_.size();
    ++recording_;
    visit();
    --recording_;
    Changes changes;
    for (std::size_t i = journal_.size(); i-- > mark;) {
      auto& [index, before] = journal_[i];
      // The newest entry of a name holds its final state; older ones only rewind it.
      changes.emplace_back(index, std::exchange(symbols_[index], std::move(before)));
    }
    journal_.resize(mark);
    // Rewinding visited every name newest first: keep the first of each.
    std::unordered_map<std::size_t, bool> seen;
    Changes latest;
    for (auto& change : changes) {
      if (seen.emplace(change.first, true).second) latest.push_back(std::move(change));
    }
    return latest;
  }

  void merge(const std::vector<Changes>& branches) {
    std::vector<std::size_t> newly_stored;
    for (const Changes& changes : branches) {
      for (const auto& [index, symbol] : changes) {
        if (symbol.stored && !symbols_[index].stored) newly_stored.push_back(index);
      }
    }
    for (const Changes& changes : branches) {
      for (const auto& [index, changed] : changes) {
        Symbol symbol = symbols_[index];
        symbol.present = symbol.present || changed.present;
        symbol.stored = symbol.stored || changed.stored;
        if (changed.present) symbol.load = changed.load;
        set(index, std::move(symbol));
      }
    }
    for (const std::size_t index : newly_stored) {
      Symbol symbol = symbols_[index];
      symbol.load = initial(names_[index], Load::From::kContext);
      set(index, std::move(symbol));
    }
  }

  FrameLayout layout() const {
    FrameLayout result;
    for (const Symbol& symbol : symbols_) result.slots.push_back(symbol.load);
    return result;
  }

 private:
  // From the enclosing frame's variable, else as `otherwise` says.
  Load initial(const std::string& name, Load::From otherwise) const {
    if (parent_ != nullptr) {
      Slot outer = parent_->find(name);
      if (outer.index >= 0) {
        ++outer.hops;
        return {Load::From::kOuter, name, outer};
      }
    }
    return {otherwise, name, {}};
  }

  std::size_t index_of(const std::string& name) {
    const auto [place, added] = index_.emplace(name, symbols_.size());
    if (added) {
      symbols_.emplace_back();
      names_.push_back(name);
    }
    return place->second;
  }

  void set(std::size_t index, Symbol symbol) {
    if (recording_ > 0) journal_.emplace_back(index, symbols_[index]);
    symbols_[index] = std::move(symbol);
  }

  Scope* parent_;
  std::unordered_map<std::string, std::size_t> index_;
  std::vector<Symbol> symbols_;
  std::vector<std::string> names_;
  std::vector<std::pair<std::size_t, Symbol>> journal_;  // symbols before each change in a branch
  int recording_ = 0;
};

// First pass over a frame: which names it stores and reads. Does not enter inner frames.
void collect(Scope& scope, const Expr* expr) {
  if (expr == nullptr) return;
  if (expr->kind == ExprKind::kName) {
    if (expr->store) {
      scope.store(expr->name);
    } else {
      scope.load(expr->name);
    }
    return;
  }
  if (expr->kind == ExprKind::kAttrTarget) scope.load(expr->name);
  for (const ExprPtr& arg : expr->args) collect(scope, arg.get());
  for (const Keyword& keyword : expr->keywords) collect(scope, keyword.value.get());
  collect(scope, expr->star.get());
  collect(scope, expr->star_star.get());
}

void collect(Scope& scope, const Body& body);

void collect_if(Scope& scope, const Stmt& stmt) {
  collect(scope, stmt.branches[0].test.get());
  std::vector<Scope::Changes> branches;
  branches.push_back(scope.branch([&] { collect(scope, stmt.branches[0].body); }));
  branches.push_back(scope.branch([&] {
    for (std::size_t i = 1; i < stmt.branches.size(); ++i) {
      collect(scope, stmt.branches[i].test.get());
      scope.merge({scope.branch([&] { collect(scope, stmt.branches[i].body); })});
    }
  }));
  branches.push_back(scope.branch([&] { collect(scope, stmt.alternative); }));
  scope.merge(branches);
}

void collect(Scope& scope, const Body& body) {
  for (const auto& stmt : body) {
    switch (stmt->kind) {
      case StmtKind::kOutput:
      case StmtKind::kWith:  // the values; targets and body are the inner frame's
        for (const ExprPtr& item : stmt->items) collect(scope, item.get());
        break;
      case StmtKind::kIf:
        collect_if(scope, *stmt);
        break;
      case StmtKind::kSet:
        collect(scope, stmt->value.get());
        collect(scope, stmt->target.get());
        break;
      case StmtKind::kSetBlock:
        collect(scope, stmt->target.get());
        break;
      case StmtKind::kMacro:
        scope.store(stmt->macro->name);
        break;
      case StmtKind::kFor:
      case StmtKind::kCallBlock:
      case StmtKind::kFilterBlock:
        collect(scope, stmt->value.get());
        break;
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        break;
    }
  }
}

void declare_targets(Scope& scope, const Expr& target) {
  if (target.kind == ExprKind::kName) {
    scope.declare_parameter(target.name);
    return;
  }
  for (const ExprPtr& item : target.args) declare_targets(scope, *item);
}

// Second pass: binds names to slots and enters inner frames. `maybe` is set inside branches that
// may not be evaluated, where an unknown filter is an error only when it is reached.
class Binder {
 public:
  void bind(const Scope& scope, Expr* expr, bool maybe) {
    if (expr == nullptr) return;
    if (expr->kind == ExprKind::kName || expr->kind == ExprKind::kAttrTarget) {
      expr->slot = scope.find(expr->name);
      return;
    }
    if (expr->kind == ExprKind::kFilter) {
      expr->filter = find_filter(expr->name);
      if (expr->filter == nullptr && !maybe) unknown("filter", *expr);
    }
    if (expr->kind == ExprKind::kTest) {
      expr->test = find_test(expr->name);
      if (expr->test == nullptr && !maybe) unknown("test", *expr);
    }
    maybe = maybe || expr->kind == ExprKind::kConditional;
    for (const ExprPtr& arg : expr->args) bind(scope, arg.get(), maybe);
    for (const Keyword& keyword : expr->keywords) bind(scope, keyword.value.get(), maybe);
    bind(scope, expr->star.get(), maybe);
    bind(scope, expr->star_star.get(), maybe);
  }

  void bind(Scope& scope, Body& body, bool maybe) {
    for (const auto& stmt : body) bind(scope, *stmt, maybe);
  }

 private:
  [[noreturn]] static void unknown(const char* what, const Expr& expr) {
    throw Failure{Code::kUnsupported, cat({"no ", what, " named '", expr.name, "' is supported"}),
                  expr.line};
  }

  void bind(Scope& scope, Stmt& stmt, bool maybe) {
    switch (stmt.kind) {
      case StmtKind::kOutput:
        for (const ExprPtr& item : stmt.items) bind(scope, item.get(), maybe);
        break;
      case StmtKind::kIf:
        for (Branch& branch : stmt.branches) {
          bind(scope, branch.test.get(), true);
          bind(scope, branch.body, true);
        }
        bind(scope, stmt.alternative, true);
        break;
      case StmtKind::kSet:
        bind(scope, stmt.target.get(), maybe);
        bind(scope, stmt.value.get(), maybe);
        break;
      case StmtKind::kSetBlock:
      case StmtKind::kFilterBlock:
        bind_block(scope, stmt, maybe);
        break;
      case StmtKind::kFor:
        bind_for(scope, stmt, maybe);
        break;
      case StmtKind::kMacro:
        bind_macro(scope, *stmt.macro, stmt.line);
        stmt.slot = scope.find(stmt.macro->name);
        break;
      case StmtKind::kCallBlock:
        bind(scope, stmt.value.get(), maybe);
        bind_macro(scope, *stmt.macro, stmt.line);
        break;
      case StmtKind::kWith: {
        for (const ExprPtr& item : stmt.items) bind(scope, item.get(), maybe);
        Scope inner(&scope);
        for (const ExprPtr& target : stmt.targets) declare_targets(inner, *target);
        collect(inner, stmt.body);
        for (const ExprPtr& target : stmt.targets) bind(inner, target.get(), maybe);
        bind(inner, stmt.body, false);
        stmt.frame = inner.layout();
        break;
      }
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        break;
    }
  }

  void bind_block(Scope& scope, Stmt& stmt, bool maybe) {
    bind(scope, stmt.target.get(), maybe);
    Scope inner(&scope);
    collect(inner, stmt.body);
    collect(inner, stmt.value.get());
    bind(inner, stmt.body, false);
    bind(inner, stmt.value.get(), false);
    stmt.frame = inner.layout();
  }

  void bind_for(Scope& scope, Stmt& stmt, bool maybe) {
    if (assigns(stmt, "loop")) {
      throw Failure{Code::kInvalidFile, "cannot assign to 'loop' inside a loop", stmt.line};
    }
    bind(scope, stmt.value.get(), maybe);
    // The targets come first in both frames, so they have the same slots in both.
    Scope inner(&scope);
    declare_targets(inner, *stmt.target);
    if (stmt.recursive || reads_undeclared(stmt.body, "loop")) {
      stmt.loop_slot = inner.declare_parameter("loop");
    }
    collect(inner, stmt.body);
    bind(inner, stmt.target.get(), false);
    bind(inner, stmt.body, false);
    stmt.frame = inner.layout();
    if (stmt.condition) {
      Scope condition(&scope);
      declare_targets(condition, *stmt.target);
      collect(condition, stmt.condition.get());
      bind(condition, stmt.condition.get(), false);
      stmt.condition_frame = condition.layout();
    }
    Scope alternative(&scope);
    collect(alternative, stmt.alternative);
    bind(alternative, stmt.alternative, false);
    stmt.alternative_frame = alternative.layout();
  }

  void bind_macro(Scope& scope, MacroDef& macro, int line) {
    Scope inner(&scope);
    for (Parameter& parameter : macro.parameters) {
      parameter.slot = inner.declare_parameter(parameter.name);
      if (parameter.name == "caller") macro.explicit_caller = true;
    }
    const auto special = [&](const char* name) {
      if (!reads_undeclared(macro.body, name)) return -1;
      for (const Parameter& parameter : macro.parameters) {
        if (parameter.name != name) continue;
        if (parameter.name == "caller" && !parameter.fallback) {
          throw Failure{Code::kInvalidFile, "parameter 'caller' needs a default", line};
        }
        return -1;
      }
      return inner.declare_parameter(name);
    };
    macro.caller_slot = special("caller");
    macro.kwargs_slot = special("kwargs");
    macro.varargs_slot = special("varargs");
    for (const Parameter& parameter : macro.parameters) collect(inner, parameter.fallback.get());
    collect(inner, macro.body);
    for (Parameter& parameter : macro.parameters) bind(inner, parameter.fallback.get(), false);
    bind(inner, macro.body, false);
    macro.frame = inner.layout();
  }
};

}  // namespace

FrameLayout resolve(Body& body) {
  Scope root(nullptr);
  collect(root, body);
  Binder().bind(root, body, false);
  return root.layout();
}

}  // namespace monolayer::jinja

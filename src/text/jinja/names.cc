#include "text/jinja/names.h"

#include <functional>

namespace monolayer::jinja {

namespace {

enum class Use : std::uint8_t { kRead, kStore, kParameter };
// Returns false to stop the walk.
using Visitor = std::function<bool(std::string_view name, Use use)>;

bool walk(const Body& body, const Visitor& visit);

bool walk(const Expr* expr, const Visitor& visit, Use store = Use::kStore) {
  if (expr == nullptr) return true;
  if (expr->kind == ExprKind::kName) return visit(expr->name, expr->store ? store : Use::kRead);
  for (const ExprPtr& arg : expr->args) {
    if (!walk(arg.get(), visit, store)) return false;
  }
  for (const Keyword& keyword : expr->keywords) {
    if (!walk(keyword.value.get(), visit, store)) return false;
  }
  return walk(expr->star.get(), visit, store) && walk(expr->star_star.get(), visit, store);
}

bool walk(const MacroDef& macro, const Visitor& visit) {
  for (const Parameter& parameter : macro.parameters) {
    if (!visit(parameter.name, Use::kParameter)) return false;
  }
  for (const Parameter& parameter : macro.parameters) {
    if (!walk(parameter.fallback.get(), visit)) return false;
  }
  return walk(macro.body, visit);
}

bool walk(const Stmt& stmt, const Visitor& visit) {
  const auto walk_items = [&] {
    for (const ExprPtr& item : stmt.items) {
      if (!walk(item.get(), visit)) return false;
    }
    return true;
  };
  switch (stmt.kind) {
    case StmtKind::kOutput:
      return walk_items();
    case StmtKind::kIf:
      for (const Branch& branch : stmt.branches) {
        if (!walk(branch.test.get(), visit) || !walk(branch.body, visit)) return false;
      }
      return walk(stmt.alternative, visit);
    case StmtKind::kFor:
      return walk(stmt.target.get(), visit) && walk(stmt.value.get(), visit) &&
             walk(stmt.body, visit) && walk(stmt.alternative, visit) &&
             walk(stmt.condition.get(), visit);
    case StmtKind::kSet:
    case StmtKind::kSetBlock:
      return walk(stmt.target.get(), visit) && walk(stmt.value.get(), visit) &&
             walk(stmt.body, visit);
    case StmtKind::kMacro:
      return walk(*stmt.macro, visit);
    case StmtKind::kCallBlock:
      return walk(stmt.value.get(), visit) && walk(*stmt.macro, visit);
    case StmtKind::kFilterBlock:
      return walk(stmt.body, visit) && walk(stmt.value.get(), visit);
    case StmtKind::kWith:
      for (const ExprPtr& target : stmt.targets) {
        if (!walk(target.get(), visit, Use::kParameter)) return false;
      }
      return walk_items() && walk(stmt.body, visit);
    case StmtKind::kBreak:
    case StmtKind::kContinue:
      return true;
  }
  return true;
}

bool walk(const Body& body, const Visitor& visit) {
  for (const auto& stmt : body) {
    if (!walk(*stmt, visit)) return false;
  }
  return true;
}

}  // namespace

bool reads_undeclared(const Body& body, std::string_view name) {
  bool found = false;
  walk(body, [&](std::string_view other, Use use) {
    if (other != name) return true;
    found = use == Use::kRead;
    return false;
  });
  return found;
}

bool assigns(const Stmt& loop, std::string_view name) {
  return !walk(
      loop, [&](std::string_view other, Use use) { return other != name || use != Use::kStore; });
}

}  // namespace monolayer::jinja

// Expressions, in order of falling looseness: conditional, or, and, not, comparison, sum, ~,
// product, power, unary, then postfix forms and filters.
#include <algorithm>
#include <utility>

#include "text/jinja/parser.h"

namespace monolayer::jinja {

ExprPtr Parser::expression(bool with_conditional) {
  const Nesting guard(*this);
  return with_conditional ? conditional() : or_expr();
}

ExprPtr Parser::tuple(bool simple, bool with_conditional, std::string_view end_name,
                      bool parentheses, bool attribute_targets) {
  const int line = current().line;
  const auto at_end = [&] {
    return at(Tok::kVariableEnd) || at(Tok::kBlockEnd) || at(Tok::kRParen) ||
           (!end_name.empty() && at_name(end_name));
  };
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect(Tok::kComma);
    if (at_end()) break;
    items.push_back(simple ? primary(attribute_targets) : expression(with_conditional));
    if (!at(Tok::kComma)) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!parentheses) fail_here(cat({"expected an expression, got ", describe(current())}));
  }
  ExprPtr result = node(ExprKind::kTuple, line);
  for (ExprPtr& item : items) adopt(*result, std::move(item));
  return result;
}

ExprPtr Parser::conditional() {
  ExprPtr value = or_expr();
  while (at_name("if")) {
    const int line = take().line;
    ExprPtr test = or_expr();
    ExprPtr alternative;
    if (skip_name("else")) {
      const Nesting guard(*this);
      alternative = conditional();
    }
    ExprPtr result = node(ExprKind::kConditional, line, std::move(test), std::move(value));
    adopt(*result, std::move(alternative));
    value = std::move(result);
  }
  return value;
}

ExprPtr Parser::or_expr() {
  ExprPtr left = and_expr();
  while (at_name("or")) {
    const int line = take().line;
    ExprPtr right = and_expr();
    left = node(ExprKind::kOr, line, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr Parser::and_expr() {
  ExprPtr left = not_expr();
  while (at_name("and")) {
    const int line = take().line;
    ExprPtr right = not_expr();
    left = node(ExprKind::kAnd, line, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr Parser::not_expr() {
  if (!at_name("not")) return compare();
  const Nesting guard(*this);
  const int line = take().line;
  return node(ExprKind::kNot, line, not_expr());
}

ExprPtr Parser::compare() {
  const int line = current().line;
  ExprPtr first = sum();
  ExprPtr result;
  while (true) {
    CompareOp op{};
    switch (current().type) {
      case Tok::kEq:
        op = CompareOp::kEq;
        break;
      case Tok::kNe:
        op = CompareOp::kNe;
        break;
      case Tok::kLt:
        op = CompareOp::kLt;
        break;
      case Tok::kLe:
        op = CompareOp::kLe;
        break;
      case Tok::kGt:
        op = CompareOp::kGt;
        break;
      case Tok::kGe:
        op = CompareOp::kGe;
        break;
      default:
        if (at_name("in")) {
          op = CompareOp::kIn;
        } else if (at_name("not") && look().type == Tok::kName && look().text == "in") {
          take();
          op = CompareOp::kNotIn;
        } else {
          return result ? std::move(result) : std::move(first);
        }
    }
    take();
    if (!result) result = node(ExprKind::kCompare, line, std::move(first));
    result->ops.push_back(op);
    adopt(*result, sum());
  }
}

ExprPtr Parser::sum() {
  ExprPtr left = concat();
  while (at(Tok::kAdd) || at(Tok::kSub)) {
    const Token op = take();
    ExprPtr right = concat();
    left = node(op.type == Tok::kAdd ? ExprKind::kAdd : ExprKind::kSub, op.line, std::move(left),
                std::move(right));
  }
  return left;
}

ExprPtr Parser::concat() {
  ExprPtr first = product();
  if (!at(Tok::kTilde)) return first;
  ExprPtr result = node(ExprKind::kConcat, current().line, std::move(first));
  while (skip(Tok::kTilde)) adopt(*result, product());
  return result;
}

ExprPtr Parser::product() {
  ExprPtr left = power();
  while (true) {
    ExprKind kind{};
    switch (current().type) {
      case Tok::kMul:
        kind = ExprKind::kMul;
        break;
      case Tok::kDiv:
        kind = ExprKind::kDiv;
        break;
      case Tok::kFloorDiv:
        kind = ExprKind::kFloorDiv;
        break;
      case Tok::kMod:
        kind = ExprKind::kMod;
        break;
      default:
        return left;
    }
    const int line = take().line;
    ExprPtr right = power();
    left = node(kind, line, std::move(left), std::move(right));
  }
}

ExprPtr Parser::power() {
  ExprPtr left = unary(true);
  while (at(Tok::kPow)) {
    const int line = take().line;
    ExprPtr right = unary(true);
    left = node(ExprKind::kPow, line, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr Parser::unary(bool with_filter) {
  ExprPtr value;
  if (at(Tok::kSub) || at(Tok::kAdd)) {
    const Nesting guard(*this);
    const Token sign = take();
    value = node(sign.type == Tok::kSub ? ExprKind::kNegative : ExprKind::kPositive, sign.line,
                 unary(false));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filter ? filter_chain(std::move(value)) : std::move(value);
}

ExprPtr Parser::primary(bool attribute_targets) {
  const int line = current().line;
  switch (current().type) {
    case Tok::kName: {
      Token token = take();
      const std::string& name = token.text;
      if (name == "true" || name == "True") return constant(Value::boolean(true), line);
      if (name == "false" || name == "False") return constant(Value::boolean(false), line);
      if (name == "none" || name == "None") return constant(Value(), line);
      ExprPtr result;
      if (attribute_targets && skip(Tok::kDot)) {
        result = node(ExprKind::kAttrTarget, line);
        result->constant = Value::literal(expect(Tok::kName).text);
      } else {
        result = node(ExprKind::kName, line);
      }
      result->name = std::move(token.text);
      return result;
    }
    case Tok::kString: {
      std::string text = take().text;
      while (at(Tok::kString)) text += take().text;
      return constant(Value::literal(std::move(text)), line);
    }
    case Tok::kInteger:
      return constant(Value::integer(take().integer), line);
    case Tok::kFloat:
      return constant(Value::real(take().real), line);
    case Tok::kLParen: {
      const Nesting guard(*this);
      take();
      ExprPtr result = tuple(false, true, {}, true, false);
      expect(Tok::kRParen);
      return result;
    }
    case Tok::kLBracket:
      return list();
    case Tok::kLBrace:
      return dict();
    default:
      fail_here(cat({"unexpected ", describe(current())}));
  }
}

ExprPtr Parser::list() {
  ExprPtr result = node(ExprKind::kList, expect(Tok::kLBracket).line);
  while (!at(Tok::kRBracket)) {
    if (!result->args.empty()) expect(Tok::kComma);
    if (at(Tok::kRBracket)) break;
    adopt(*result, expression());
  }
  expect(Tok::kRBracket);
  return result;
}

ExprPtr Parser::dict() {
  ExprPtr result = node(ExprKind::kDict, expect(Tok::kLBrace).line);
  while (!at(Tok::kRBrace)) {
    if (!result->args.empty()) expect(Tok::kComma);
    if (at(Tok::kRBrace)) break;
    adopt(*result, expression());
    expect(Tok::kColon);
    adopt(*result, expression());
  }
  expect(Tok::kRBrace);
  return result;
}

ExprPtr Parser::postfix(ExprPtr value) {
  while (true) {
    if (at(Tok::kDot) || at(Tok::kLBracket)) {
      value = subscript(std::move(value));
    } else if (at(Tok::kLParen)) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr Parser::filter_chain(ExprPtr value) {
  while (true) {
    if (skip(Tok::kPipe)) {
      value = filter(std::move(value));
    } else if (at_name("is")) {
      value = test(std::move(value));
    } else if (at(Tok::kLParen)) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr Parser::subscript(ExprPtr value) {
  const Token opening = take();
  if (opening.type == Tok::kDot) {
    Token token = take();
    if (token.type == Tok::kName) {
      ExprPtr result = node(ExprKind::kAttribute, opening.line, std::move(value));
      result->name = std::move(token.text);
      result->constant = Value::literal(result->name);
      return result;
    }
    if (token.type != Tok::kInteger) fail_at(token.line, "expected a name or number after '.'");
    return node(ExprKind::kItem, opening.line, std::move(value),
                constant(Value::integer(token.integer), token.line));
  }
  ExprPtr start;
  if (!at(Tok::kColon)) {
    if (at(Tok::kRBracket)) fail_here("empty subscript");
    start = expression();
    if (at(Tok::kComma)) {
      ExprPtr key = node(ExprKind::kTuple, opening.line, std::move(start));
      while (skip(Tok::kComma)) adopt(*key, expression());
      expect(Tok::kRBracket);
      return node(ExprKind::kItem, opening.line, std::move(value), std::move(key));
    }
    if (skip(Tok::kRBracket)) {
      return node(ExprKind::kItem, opening.line, std::move(value), std::move(start));
    }
  }
  expect(Tok::kColon);
  ExprPtr result = node(ExprKind::kSlice, opening.line, std::move(value));
  adopt(*result, std::move(start));
  const bool no_stop = at(Tok::kColon) || at(Tok::kRBracket);
  adopt(*result, no_stop ? nullptr : expression());
  const bool no_step = !skip(Tok::kColon) || at(Tok::kRBracket);
  adopt(*result, no_step ? nullptr : expression());
  expect(Tok::kRBracket);
  return result;
}

ExprPtr Parser::call(ExprPtr callee) {
  ExprPtr result = node(ExprKind::kCall, current().line, std::move(callee));
  arguments(*result);
  return result;
}

void Parser::arguments(Expr& result) {
  const int line = expect(Tok::kLParen).line;
  const auto ensure = [&](bool holds) {
    if (!holds) fail_at(line, "malformed argument list");
  };
  bool first = true;
  bool positional = true;
  while (!at(Tok::kRParen)) {
    if (!first) {
      expect(Tok::kComma);
      if (at(Tok::kRParen)) break;
    }
    first = false;
    if (skip(Tok::kMul)) {
      ensure(!result.star && !result.star_star);
      result.star = expression();
      adopt_height(result, result.star.get());
    } else if (skip(Tok::kPow)) {
      ensure(!result.star_star);
      result.star_star = expression();
      adopt_height(result, result.star_star.get());
    } else if (at(Tok::kName) && look().type == Tok::kAssign) {
      ensure(!result.star_star);
      positional = false;
      std::string name = take().text;
      take();
      for (const Keyword& keyword : result.keywords) {
        if (keyword.name == name) fail_at(line, "keyword argument '" + name + "' repeated");
      }
      result.keywords.push_back({std::move(name), expression()});
      adopt_height(result, result.keywords.back().value.get());
    } else {
      ensure(positional && !result.star && !result.star_star);
      adopt(result, expression());
    }
  }
  expect(Tok::kRParen);
}

std::string Parser::dotted_name() {
  std::string name = expect(Tok::kName).text;
  while (skip(Tok::kDot)) name.append(".").append(expect(Tok::kName).text);
  return name;
}

ExprPtr Parser::filter(ExprPtr value) {
  ExprPtr result = node(ExprKind::kFilter, current().line);
  adopt(*result, std::move(value));
  result->name = dotted_name();
  if (at(Tok::kLParen)) arguments(*result);
  return result;
}

ExprPtr Parser::test(ExprPtr value) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExprPtr result = node(ExprKind::kTest, line, std::move(value));
  result->name = dotted_name();
  if (at(Tok::kLParen)) {
    arguments(*result);
  } else if ((at(Tok::kName) && !at_name("else") && !at_name("or") && !at_name("and")) ||
             at(Tok::kString) || at(Tok::kInteger) || at(Tok::kFloat) || at(Tok::kLBracket) ||
             at(Tok::kLBrace)) {
    if (at_name("is")) fail_here("tests cannot be chained with 'is'");
    const Nesting guard(*this);
    adopt(*result, postfix(primary()));
  }
  return negated ? node(ExprKind::kNot, line, std::move(result)) : std::move(result);
}

}  // namespace monolayer::jinja

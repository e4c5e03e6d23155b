#include "text/jinja/parser.h"

#include <algorithm>
#include <utility>

namespace monolayer::jinja {

namespace {

// Jinja statements that chat templates have no use for, refused by name.
constexpr std::string_view kRefused[] = {"block", "extends",    "include", "import",    "from",
                                         "do",    "autoescape", "trans",   "pluralize", "debug"};

}  // namespace

Parser::Parser(std::string_view source, const Limits& limits) : limits_(limits), lexer_(source) {
  current_ = lexer_.next();
}

void Parser::fail_at(int line, std::string message) const {
  throw Failure{Code::kInvalidFile, std::move(message), line};
}

const Token& Parser::look() {
  if (!has_next_) next_ = lexer_.next();
  has_next_ = true;
  return next_;
}

Token Parser::take() {
  Token token = std::move(current_);
  current_ = has_next_ ? std::move(next_) : lexer_.next();
  has_next_ = false;
  return token;
}

bool Parser::skip(Tok type) {
  if (!at(type)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  take();
  return true;
}

Token Parser::expect(Tok type) {
  if (!at(type)) {
    fail_here(cat({"expected '", describe(type), "', got ", describe(current_)}));
  }
  return take();
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) {
    fail_here(cat({"expected '", name, "', got ", describe(current_)}));
  }
}

void Parser::count_node() {
  if (++nodes_ > limits_.nodes) {
    throw Failure{Code::kResourceExhausted,
                  "more than " + std::to_string(limits_.nodes) + " syntax nodes", current_.line};
  }
}

ExprPtr Parser::node(ExprKind kind, int line) {
  count_node();
  auto result = std::make_unique<Expr>();
  result->kind = kind;
  result->line = line;
  return result;
}

ExprPtr Parser::node(ExprKind kind, int line, ExprPtr a) {
  ExprPtr result = node(kind, line);
  adopt(*result, std::move(a));
  return result;
}

ExprPtr Parser::node(ExprKind kind, int line, ExprPtr a, ExprPtr b) {
  ExprPtr result = node(kind, line, std::move(a));
  adopt(*result, std::move(b));
  return result;
}

ExprPtr Parser::constant(Value value, int line) {
  ExprPtr result = node(ExprKind::kConstant, line);
  result->constant = std::move(value);
  return result;
}

// Chains such as a + b + c or x.a.b.c grow a deep tree without recursion in the parser, so the
// tree's height is bounded where it is built: it bounds every later walk.
void Parser::adopt_height(Expr& parent, const Expr* child) {
  if (child == nullptr) return;
  parent.height = std::max(parent.height, child->height + 1);
  if (parent.height > 2 * limits_.nesting) {
    throw Failure{Code::kResourceExhausted,
                  "expression nests deeper than " + std::to_string(2 * limits_.nesting) + " levels",
                  parent.line};
  }
}

void Parser::adopt(Expr& parent, ExprPtr child) {
  adopt_height(parent, child.get());
  parent.args.push_back(std::move(child));
}

std::unique_ptr<Stmt> Parser::statement_node(StmtKind kind, int line) {
  count_node();
  auto result = std::make_unique<Stmt>();
  result->kind = kind;
  result->line = line;
  return result;
}

Body Parser::parse() {
  Body body = body_until({});
  if (!at(Tok::kEof)) fail_here(cat({"unexpected ", describe(current_)}));
  return body;
}

void Parser::output(Body& body, ExprPtr item, int line) {
  if (body.empty() || body.back()->kind != StmtKind::kOutput) {
    body.push_back(statement_node(StmtKind::kOutput, line));
  }
  body.back()->items.push_back(std::move(item));
}

Body Parser::body_until(Ends ends) {
  const Nesting guard(*this);
  Body body;
  while (true) {
    const int line = current_.line;
    switch (current_.type) {
      case Tok::kData:
        output(body, constant(Value::literal(take().text), line), line);
        break;
      case Tok::kVariableBegin:
        take();
        output(body, value_tuple(), line);
        expect(Tok::kVariableEnd);
        break;
      case Tok::kBlockBegin: {
        take();
        for (const std::string_view end : ends) {
          if (at_name(end)) return body;
        }
        std::unique_ptr<Stmt> stmt = statement();
        expect(Tok::kBlockEnd);
        body.push_back(std::move(stmt));
        break;
      }
      default:
        if (ends.size() != 0) {
          std::string wanted;
          for (const std::string_view end : ends) {
            wanted += (wanted.empty() ? "'" : " or '") + std::string(end) + "'";
          }
          fail_here(cat({"unexpected ", describe(current_), ", looking for ", wanted}));
        }
        return body;
    }
  }
}

Body Parser::block(Ends ends) {
  skip(Tok::kColon);
  expect(Tok::kBlockEnd);
  return body_until(ends);
}

std::unique_ptr<Stmt> Parser::statement() {
  if (!at(Tok::kName)) fail_here(cat({"expected a tag name, got ", describe(current_)}));
  const std::string& name = current_.text;
  if (name == "if") return if_statement();
  if (name == "for") return for_statement();
  if (name == "set") return set_statement();
  if (name == "macro") return macro_statement();
  if (name == "call") return call_statement();
  if (name == "filter") return filter_statement();
  if (name == "with") return with_statement();
  if (name == "generation") return generation_statement();
  if (name == "print") return print_statement();
  if (name == "break") return loop_control(StmtKind::kBreak);
  if (name == "continue") return loop_control(StmtKind::kContinue);
  for (const std::string_view refused : kRefused) {
    if (name == refused) {
      throw Failure{Code::kUnsupported, "tag '" + name + "' is not supported", current_.line};
    }
  }
  fail_here(cat({"unknown tag '", name, "'"}));
}

std::unique_ptr<Stmt> Parser::print_statement() {
  auto result = statement_node(StmtKind::kOutput, take().line);
  while (!at(Tok::kBlockEnd)) {
    if (!result->items.empty()) expect(Tok::kComma);
    result->items.push_back(expression());
  }
  return result;
}

std::unique_ptr<Stmt> Parser::if_statement() {
  auto result = statement_node(StmtKind::kIf, current_.line);
  while (true) {
    take();  // if or elif
    count_node();
    Branch branch;
    branch.test = tuple(false, false, {}, false, false);
    branch.body = block({"elif", "else", "endif"});
    result->branches.push_back(std::move(branch));
    if (!at_name("elif")) break;
  }
  if (skip_name("else")) result->alternative = block({"endif"});
  expect_name("endif");
  return result;
}

std::unique_ptr<Stmt> Parser::for_statement() {
  auto result = statement_node(StmtKind::kFor, take().line);
  result->target = assign_target("in", false);
  expect_name("in");
  result->value = tuple(false, false, "recursive", false, false);
  if (skip_name("if")) result->condition = expression();
  result->recursive = skip_name("recursive");
  ++loops_;
  result->body = block({"endfor", "else"});
  --loops_;
  if (skip_name("else")) result->alternative = block({"endfor"});
  expect_name("endfor");
  return result;
}

std::unique_ptr<Stmt> Parser::set_statement() {
  auto result = statement_node(StmtKind::kSet, take().line);
  result->target = assign_target({}, true);
  if (skip(Tok::kAssign)) {
    result->value = value_tuple();
    return result;
  }
  result->kind = StmtKind::kSetBlock;
  while (skip(Tok::kPipe)) result->value = filter(std::move(result->value));
  result->body = block({"endset"});
  expect_name("endset");
  return result;
}

void Parser::signature(MacroDef& macro) {
  expect(Tok::kLParen);
  while (!at(Tok::kRParen)) {
    if (!macro.parameters.empty()) expect(Tok::kComma);
    count_node();
    Parameter parameter;
    parameter.line = current_.line;
    parameter.name = name_target()->name;
    for (const Parameter& other : macro.parameters) {
      if (other.name == parameter.name) fail_here(cat({"parameter '", other.name, "' repeated"}));
    }
    if (skip(Tok::kAssign)) {
      parameter.fallback = expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().fallback) {
      fail_here("parameter without default follows one with default");
    }
    macro.parameters.push_back(std::move(parameter));
  }
  expect(Tok::kRParen);
}

// break and continue do not reach through the body of a macro.
Body Parser::macro_body(std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  Body body = block({end});
  loops_ = loops;
  expect_name(end);
  return body;
}

std::unique_ptr<Stmt> Parser::macro_statement() {
  auto result = statement_node(StmtKind::kMacro, take().line);
  result->macro = std::make_unique<MacroDef>();
  result->macro->name = name_target()->name;
  signature(*result->macro);
  result->macro->body = macro_body("endmacro");
  return result;
}

std::unique_ptr<Stmt> Parser::call_statement() {
  auto result = statement_node(StmtKind::kCallBlock, take().line);
  result->macro = std::make_unique<MacroDef>();
  if (at(Tok::kLParen)) signature(*result->macro);
  result->value = expression();
  if (result->value->kind != ExprKind::kCall) fail_at(result->line, "expected a call");
  result->macro->body = macro_body("endcall");
  return result;
}

// {% generation %} marks what the model wrote, for training; its text is output as it stands. It
// is a call block whose callee is absent.
std::unique_ptr<Stmt> Parser::generation_statement() {
  auto result = statement_node(StmtKind::kCallBlock, take().line);
  result->macro = std::make_unique<MacroDef>();
  result->macro->body = macro_body("endgeneration");
  return result;
}

std::unique_ptr<Stmt> Parser::filter_statement() {
  auto result = statement_node(StmtKind::kFilterBlock, take().line);
  result->value = filter(nullptr);
  while (skip(Tok::kPipe)) result->value = filter(std::move(result->value));
  result->body = block({"endfilter"});
  expect_name("endfilter");
  return result;
}

std::unique_ptr<Stmt> Parser::with_statement() {
  auto result = statement_node(StmtKind::kWith, take().line);
  while (!at(Tok::kBlockEnd)) {
    if (!result->targets.empty()) expect(Tok::kComma);
    result->targets.push_back(assign_target({}, false));
    expect(Tok::kAssign);
    result->items.push_back(expression());
  }
  result->body = block({"endwith"});
  expect_name("endwith");
  return result;
}

std::unique_ptr<Stmt> Parser::loop_control(StmtKind kind) {
  auto result = statement_node(kind, current_.line);
  const Token token = take();
  if (loops_ == 0) fail_at(token.line, "'" + token.text + "' outside of a loop");
  return result;
}

ExprPtr Parser::name_target() {
  ExprPtr result = node(ExprKind::kName, current_.line);
  result->name = expect(Tok::kName).text;
  mark_target(*result);
  return result;
}

ExprPtr Parser::assign_target(std::string_view end_name, bool attribute_targets) {
  ExprPtr result = tuple(true, true, end_name, false, attribute_targets);
  mark_target(*result);
  return result;
}

void Parser::mark_target(Expr& target) {
  if (target.kind == ExprKind::kTuple) {
    for (ExprPtr& item : target.args) mark_target(*item);
    return;
  }
  static constexpr std::string_view kReserved[] = {"true", "false", "none",
                                                   "True", "False", "None"};
  if (target.kind == ExprKind::kName) {
    for (const std::string_view reserved : kReserved) {
      if (target.name == reserved) fail_at(target.line, "cannot assign to '" + target.name + "'");
    }
    target.store = true;
    return;
  }
  if (target.kind != ExprKind::kAttrTarget) fail_at(target.line, "cannot assign to this");
}

}  // namespace monolayer::jinja

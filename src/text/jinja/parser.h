// Template source to syntax tree. Statements and the grammar's entry are in parser.cc, expressions
// in parser_expr.cc.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace monolayer::jinja {

class Parser {
 public:
  Parser(std::string_view source, const Limits& limits);
  // The whole template. Throws Failure naming construct and line.
  Body parse();

 private:
  // Tokens.
  const Token& current() const { return current_; }
  bool at(Tok type) const { return current_.type == type; }
  bool at_name(std::string_view name) const {
    return current_.type == Tok::kName && current_.text == name;
  }
  const Token& look();
  Token take();
  bool skip(Tok type);
  bool skip_name(std::string_view name);
  Token expect(Tok type);
  void expect_name(std::string_view name);
  [[noreturn]] void fail_at(int line, std::string message) const;
  [[noreturn]] void fail_here(std::string message) const {
    fail_at(current_.line, std::move(message));
  }

  // Nodes.
  void count_node();
  ExprPtr node(ExprKind kind, int line);
  ExprPtr node(ExprKind kind, int line, ExprPtr a);
  ExprPtr node(ExprKind kind, int line, ExprPtr a, ExprPtr b);
  ExprPtr constant(Value value, int line);
  void adopt(Expr& parent, ExprPtr child);  // appends; null allowed
  void adopt_height(Expr& parent, const Expr* child);
  std::unique_ptr<Stmt> statement_node(StmtKind kind, int line);

  // Statements.
  using Ends = std::initializer_list<std::string_view>;
  Body body_until(Ends ends);  // stops at the end name, inside its tag
  Body block(Ends ends);       // from the end of the opening tag
  void output(Body& body, ExprPtr item, int line);
  std::unique_ptr<Stmt> statement();
  std::unique_ptr<Stmt> if_statement();
  std::unique_ptr<Stmt> for_statement();
  std::unique_ptr<Stmt> set_statement();
  std::unique_ptr<Stmt> macro_statement();
  std::unique_ptr<Stmt> call_statement();
  std::unique_ptr<Stmt> filter_statement();
  std::unique_ptr<Stmt> with_statement();
  std::unique_ptr<Stmt> generation_statement();
  std::unique_ptr<Stmt> print_statement();
  std::unique_ptr<Stmt> loop_control(StmtKind kind);
  void signature(MacroDef& macro);
  Body macro_body(std::string_view end);

  // Expressions.
  ExprPtr expression(bool conditional = true);
  ExprPtr tuple(bool simple, bool conditional, std::string_view end_name, bool parentheses,
                bool attribute_targets);
  ExprPtr value_tuple() { return tuple(false, true, {}, false, false); }
  ExprPtr conditional();
  ExprPtr or_expr();
  ExprPtr and_expr();
  ExprPtr not_expr();
  ExprPtr compare();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filter);
  ExprPtr primary(bool attribute_targets = false);
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr value);
  ExprPtr filter_chain(ExprPtr value);
  ExprPtr subscript(ExprPtr value);
  ExprPtr call(ExprPtr callee);
  ExprPtr filter(ExprPtr value);  // one filter, at its name
  ExprPtr test(ExprPtr value);
  void arguments(Expr& call);
  std::string dotted_name();
  ExprPtr assign_target(std::string_view end_name, bool attribute_targets);
  ExprPtr name_target();
  void mark_target(Expr& target);

  class Nesting;

  const Limits& limits_;
  Lexer lexer_;
  Token current_;
  Token next_;
  bool has_next_ = false;
  std::size_t nodes_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // enclosing loops that break and continue may refer to
};

// Guards the parser's own recursion.
class Parser::Nesting {
 public:
  explicit Nesting(Parser& parser) : parser_(parser) {
    if (++parser_.nesting_ > parser_.limits_.nesting) {
      --parser_.nesting_;
      throw Failure{
          Code::kResourceExhausted,
          "constructs nest deeper than " + std::to_string(parser_.limits_.nesting) + " levels",
          parser_.current_.line};
    }
  }
  ~Nesting() { --parser_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  Parser& parser_;
};

}  // namespace monolayer::jinja

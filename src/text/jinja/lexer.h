// Template source to tokens, one at a time, with Jinja's white space rules as chat templates are
// run: trim_blocks and lstrip_blocks on, one trailing newline of the source dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/runtime.h"

namespace monolayer::jinja {

enum class Tok : std::uint8_t {
  kEof,
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kTilde,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kAssign,
  kDot,
  kColon,
  kComma,
  kPipe,
  kSemicolon,
  kLParen,
  kRParen,
  kLBracket,
  kRBracket,
  kLBrace,
  kRBrace,
};

struct Token {
  Tok type = Tok::kEof;
  int line = 1;
  std::string text;  // data, name or unescaped string
  std::int64_t integer = 0;
  double real = 0;
};

// How a token is named in an error message.
std::string describe(const Token& token);
std::string_view describe(Tok type);

class Lexer {
 public:
  // `source` as read from the file; fails if it is not UTF-8.
  explicit Lexer(std::string_view source);
  // Past the end it returns kEof again and again. Fails with the line of the offending character.
  Token next();

 private:
  enum class State : std::uint8_t { kRoot, kVariable, kBlock };

  [[noreturn]] void fail_here(std::string message) const;
  Token make(Tok type) const;
  void advance(std::size_t end);  // moves to `end`, counting lines
  bool starts_with(std::string_view text) const;
  Token next_root();
  Token raw_block(std::size_t tag_end);
  bool raw_tag(std::size_t at, std::string_view word, char* sign_before, std::size_t* end) const;
  void skip_comment();
  void close_tag(std::size_t mark, std::size_t size);
  std::string take_data(std::size_t end, char sign, bool variable);
  bool end_of_tag(Token* token);
  Token next_in_tag();
  bool number(Token* token);
  Token string(char quote);

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the previous match ended with a newline
  State state_ = State::kRoot;
  std::vector<char> brackets_;
  std::vector<Token> pending_;  // at most one: the tag that follows returned data
};

}  // namespace monolayer::jinja

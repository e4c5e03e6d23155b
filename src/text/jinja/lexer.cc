#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "text/jinja/unescape.h"
#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

struct Operator {
  std::string_view text;
  Tok type;
};
// Longer ones first.
constexpr Operator kOperators[] = {
    {"//", Tok::kFloorDiv}, {"**", Tok::kPow},      {"==", Tok::kEq},    {"!=", Tok::kNe},
    {">=", Tok::kGe},       {"<=", Tok::kLe},       {"+", Tok::kAdd},    {"-", Tok::kSub},
    {"/", Tok::kDiv},       {"*", Tok::kMul},       {"%", Tok::kMod},    {"~", Tok::kTilde},
    {"[", Tok::kLBracket},  {"]", Tok::kRBracket},  {"(", Tok::kLParen}, {")", Tok::kRParen},
    {"{", Tok::kLBrace},    {"}", Tok::kRBrace},    {">", Tok::kGt},     {"<", Tok::kLt},
    {"=", Tok::kAssign},    {".", Tok::kDot},       {":", Tok::kColon},  {"|", Tok::kPipe},
    {",", Tok::kComma},     {";", Tok::kSemicolon},
};

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  return out;
}

}  // namespace

std::string_view describe(Tok type) {
  for (const Operator& op : kOperators) {
    if (op.type == type) return op.text;
  }
  switch (type) {
    case Tok::kEof:
      return "end of template";
    case Tok::kData:
      return "template text";
    case Tok::kVariableBegin:
      return "{{";
    case Tok::kVariableEnd:
      return "}}";
    case Tok::kBlockBegin:
      return "{%";
    case Tok::kBlockEnd:
      return "%}";
    case Tok::kName:
      return "a name";
    case Tok::kString:
      return "a string";
    default:
      return "a number";
  }
}

std::string describe(const Token& token) {
  if (token.type == Tok::kName) return "'" + token.text + "'";
  return cat({"'", describe(token.type), "'"});
}

Lexer::Lexer(std::string_view source) : source_(normalize_newlines(source)) {
  if (!utf8::valid(source_)) {
    throw Failure{Code::kInvalidFile, "the template is not UTF-8", 1};
  }
  if (!source_.empty() && source_.back() == '\n') source_.pop_back();
}

void Lexer::fail_here(std::string message) const {
  throw Failure{Code::kInvalidFile, std::move(message), line_};
}

Token Lexer::make(Tok type) const {
  Token token;
  token.type = type;
  token.line = line_;
  return token;
}

void Lexer::advance(std::size_t end) {
  const auto begin = source_.begin() + static_cast<std::ptrdiff_t>(at_);
  line_ +=
      static_cast<int>(std::count(begin, source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
  if (end > at_) line_starting_ = source_[end - 1] == '\n';
  at_ = end;
}

bool Lexer::starts_with(std::string_view text) const {
  return source_.compare(at_, text.size(), text) == 0;
}

Token Lexer::next() {
  if (!pending_.empty()) {
    Token token = std::move(pending_.back());
    pending_.pop_back();
    return token;
  }
  return state_ == State::kRoot ? next_root() : next_in_tag();
}

// Text up to a tag at `end`, stripped as the tag's sign and kind ask.
std::string Lexer::take_data(std::size_t end, char sign, bool variable) {
  const std::string_view text = std::string_view(source_).substr(at_, end - at_);
  if (sign == '-') return std::string(text.substr(0, utf8::trim_end(text)));
  if (sign != '+' && !variable) {
    const std::size_t newline = text.rfind('\n');
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if ((line > 0 || line_starting_) && utf8::skip_space(text, line) == text.size()) {
      return std::string(text.substr(0, line));
    }
  }
  return std::string(text);
}

// Whether `{%[-+]? word -?%}` stands at `at`; `end` is past it (and past what `-` strips).
bool Lexer::raw_tag(std::size_t at, std::string_view word, char* sign, std::size_t* end) const {
  const std::string_view text = source_;
  std::size_t i = at + 2;
  *sign = i < text.size() && (text[i] == '-' || text[i] == '+') ? text[i] : ' ';
  if (*sign != ' ') ++i;
  i = utf8::skip_space(text, i);
  if (text.compare(i, word.size(), word) != 0) return false;
  i = utf8::skip_space(text, i + word.size());
  const bool is_end = word == "endraw";
  if (text.compare(i, 3, "-%}") == 0) {
    *end = utf8::skip_space(text, i + 3);
    return true;
  }
  if (is_end && text.compare(i, 3, "+%}") == 0) {
    *end = i + 3;
    return true;
  }
  if (text.compare(i, 2, "%}") != 0) return false;
  i += 2;
  if (is_end && i < text.size() && text[i] == '\n') ++i;
  *end = i;
  return true;
}

Token Lexer::raw_block(std::size_t tag_end) {
  advance(tag_end);
  for (std::size_t mark = source_.find("{%", at_); mark != std::string::npos;
       mark = source_.find("{%", mark + 1)) {
    char sign = ' ';
    std::size_t end = 0;
    if (!raw_tag(mark, "endraw", &sign, &end)) continue;
    Token token = make(Tok::kData);
    token.text = take_data(mark, sign, false);
    advance(end);
    return token;
  }
  fail_here("missing end of raw block ({% endraw %})");
}

// After the end mark of a block or comment of `size` bytes at `mark`: strips what follows.
void Lexer::close_tag(std::size_t mark, std::size_t size) {
  std::size_t end = mark + size;
  if (source_[mark] == '-') {
    end = utf8::skip_space(source_, end);
  } else if (source_[mark] != '+' && end < source_.size() && source_[end] == '\n') {
    ++end;
  }
  advance(end);
}

void Lexer::skip_comment() {
  const std::size_t mark = source_.find("#}", at_);
  if (mark == std::string::npos) fail_here("missing end of comment (#})");
  const bool sign = mark > at_ && (source_[mark - 1] == '-' || source_[mark - 1] == '+');
  close_tag(sign ? mark - 1 : mark, sign ? 3 : 2);
}

Token Lexer::next_root() {
  while (at_ < source_.size()) {
    std::size_t tag = source_.find('{', at_);
    while (tag != std::string::npos &&
           (tag + 1 == source_.size() ||
            (source_[tag + 1] != '%' && source_[tag + 1] != '{' && source_[tag + 1] != '#'))) {
      tag = source_.find('{', tag + 1);
    }
    if (tag == std::string::npos) {
      Token token = make(Tok::kData);
      token.text = source_.substr(at_);
      advance(source_.size());
      return token;
    }
    const char kind = source_[tag + 1];
    char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (sign != '-' && sign != '+') sign = ' ';
    std::size_t raw_end = 0;
    char raw_sign = ' ';
    const bool raw = kind == '%' && raw_tag(tag, "raw", &raw_sign, &raw_end);

    Token data = make(Tok::kData);
    data.text = take_data(tag, sign, kind == '{');
    advance(tag);
    if (raw) {
      pending_.push_back(raw_block(raw_end));
    } else {
      const Tok type = kind == '{' ? Tok::kVariableBegin : Tok::kBlockBegin;
      Token begin = make(type);
      advance(tag + (sign == ' ' ? 2 : 3));
      if (kind == '#') {
        skip_comment();
      } else {
        pending_.push_back(std::move(begin));
        state_ = kind == '{' ? State::kVariable : State::kBlock;
      }
    }
    if (!data.text.empty()) return data;
    if (!pending_.empty()) return next();
  }
  return make(Tok::kEof);
}

bool Lexer::end_of_tag(Token* token) {
  if (!brackets_.empty()) return false;
  const bool block = state_ == State::kBlock;
  const std::string_view mark = block ? "%}" : "}}";
  const bool sign = at_ < source_.size() && (source_[at_] == '-' || (block && source_[at_] == '+'));
  if (source_.compare(at_ + (sign ? 1 : 0), 2, mark) != 0) return false;
  *token = make(block ? Tok::kBlockEnd : Tok::kVariableEnd);
  if (block) {
    close_tag(at_, sign ? 3 : 2);
  } else {
    advance(sign ? utf8::skip_space(source_, at_ + 3) : at_ + 2);
  }
  state_ = State::kRoot;
  return true;
}

Token Lexer::next_in_tag() {
  advance(utf8::skip_space(source_, at_));
  Token token;
  if (at_ == source_.size()) return make(Tok::kEof);
  if (end_of_tag(&token)) return token;
  const char c = source_[at_];
  if (is_digit(c) && number(&token)) return token;
  if (is_name(c)) {
    std::size_t end = at_;
    while (end < source_.size() && is_name(source_[end])) ++end;
    token = make(Tok::kName);
    token.text = source_.substr(at_, end - at_);
    if (is_digit(c)) fail_here(cat({"malformed number or name '", token.text, "'"}));
    advance(end);
    return token;
  }
  if (c == '"' || c == '\'') return string(c);
  for (const Operator& op : kOperators) {
    if (!starts_with(op.text)) continue;
    if (op.type == Tok::kLParen) brackets_.push_back(')');
    if (op.type == Tok::kLBracket) brackets_.push_back(']');
    if (op.type == Tok::kLBrace) brackets_.push_back('}');
    if (c == ')' || c == ']' || c == '}') {
      if (brackets_.empty() || brackets_.back() != c) {
        fail_here(cat({"unexpected '", op.text, "'"}));
      }
      brackets_.pop_back();
    }
    token = make(op.type);
    advance(at_ + op.text.size());
    return token;
  }
  const utf8::Point point = utf8::decode(source_, at_);
  if (utf8::is_alpha(point.code)) {
    fail_here("names beyond ASCII are not supported");
  }
  fail_here(cat({"unexpected character '", source_.substr(at_, point.size), "'"}));
}

// Python's numeric literals: underscores between digits, 0x, 0o, 0b, exponents.
bool Lexer::number(Token* token) {
  const std::string_view text = source_;
  const auto digits = [&](std::size_t i) {  // past \d+(_\d+)* at i, or i
    std::size_t end = i;
    while (end < text.size() && is_digit(text[end])) {
      ++end;
      if (end + 1 < text.size() && text[end] == '_' && is_digit(text[end + 1])) ++end;
    }
    return end;
  };
  const auto clean = [&](std::size_t begin, std::size_t end) {
    std::string out(text.substr(begin, end - begin));
    out.erase(std::remove(out.begin(), out.end(), '_'), out.end());
    return out;
  };
  const std::size_t whole = digits(at_);
  std::size_t end = whole;
  // After a dot (x.0.1) a number has no fraction of its own.
  if (at_ == 0 || text[at_ - 1] != '.') {
    if (end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1])) {
      end = digits(end + 1);
    }
    if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
      std::size_t exponent = end + 1;
      if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
      if (exponent < text.size() && is_digit(text[exponent])) end = digits(exponent);
    }
  }
  *token = make(Tok::kInteger);
  if (end > whole) {
    const std::string literal = clean(at_, end);
    const auto parsed =
        std::from_chars(literal.data(), literal.data() + literal.size(), token->real);
    if (parsed.ec == std::errc::result_out_of_range) {
      token->real =
          literal.find("e-") == std::string::npos && literal.find("E-") == std::string::npos
              ? HUGE_VAL
              : 0.0;
    }
    token->type = Tok::kFloat;
    advance(end);
    return true;
  }
  int base = 10;
  std::size_t begin = at_;
  if (text[at_] == '0' && at_ + 1 < text.size()) {
    const char prefix = static_cast<char>(text[at_ + 1] | 0x20);
    base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    if (base != 10) {
      begin = at_ + 2;
      end = begin;
      const auto in_base = [&](char c) {
        if (base <= 8) return c >= '0' && c < '0' + base;
        return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
      };
      while (end < text.size() &&
             (in_base(text[end]) ||
              (text[end] == '_' && end + 1 < text.size() && in_base(text[end + 1])))) {
        ++end;
      }
      if (end == begin) return false;
    }
  }
  const std::string literal = clean(begin, end);
  if (base == 10 && literal.size() > 1 && literal[0] == '0' &&
      literal.find_first_not_of('0') != std::string::npos) {
    fail_here("a decimal number cannot start with 0");
  }
  const auto parsed =
      std::from_chars(literal.data(), literal.data() + literal.size(), token->integer, base);
  if (parsed.ec != std::errc()) fail_here(cat({"integer '", literal, "' is beyond 64 bits"}));
  advance(end);
  return true;
}

Token Lexer::string(char quote) {
  std::size_t end = at_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) fail_here("string without end");
  Token token = make(Tok::kString);
  auto text = unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
  if (!text) fail_here("malformed or unsupported escape in a string");
  token.text = std::move(*text);
  advance(end + 1);
  return token;
}

}  // namespace monolayer::jinja

// Oniguruma syntax to PCRE2 syntax, by a whitelist: see tokenizer_regex.h.
#include <algorithm>
#include <array>
#include <vector>

#include "text/tokenizer_regex.h"
#include "text/tokenizer_unicode.h"
#include "text/utf8.h"

namespace monolayer {
namespace {

// General categories mean the same in both, but for the Unicode version. Left out: C and Cn, which
// lose characters with each version, and Mn, which lost one.
constexpr std::array<std::string_view, 34> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mc", "Me", "N", "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc",
    "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

// Scripts, with the characters that Unicode 15, 15.1 and 16 added to them. Written sc:NAME in
// PCRE2, where the bare name includes script extensions.
struct Script {
  std::string_view name;
  std::string_view added;
};
constexpr std::array<Script, 24> kScripts = {{
    {"Arabic", "\\x{897}\\x{10EC2}-\\x{10EC4}\\x{10EFC}-\\x{10EFF}"},
    {"Armenian", ""},
    {"Bengali", ""},
    {"Cyrillic", "\\x{1C89}-\\x{1C8A}\\x{1E030}-\\x{1E06D}\\x{1E08F}"},
    {"Devanagari", "\\x{11B00}-\\x{11B09}"},
    {"Ethiopic", ""},
    {"Georgian", ""},
    {"Greek", ""},
    {"Gujarati", ""},
    {"Gurmukhi", ""},
    {"Han", "\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"},
    {"Hangul", ""},
    {"Hebrew", ""},
    {"Hiragana", "\\x{1B132}"},
    {"Kannada", "\\x{CF3}"},
    {"Katakana", "\\x{1B155}"},
    {"Khmer", ""},
    {"Lao", "\\x{ECE}"},
    {"Latin", "\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{1DF25}-\\x{1DF2A}"},
    {"Malayalam", ""},
    {"Myanmar", "\\x{116D0}-\\x{116E3}"},
    {"Tamil", ""},
    {"Telugu", ""},
    {"Thai", ""},
}};

// Under (?i) Oniguruma also matches one character against several ("ß" against "ss"), which PCRE2
// never does: literals in which that can happen are refused.
constexpr std::array<std::string_view, 5> kMultiFolds = {"ss", "ff", "fi", "fl", "st"};

void append_escape(char32_t code_point, std::string& out) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string digits;
  for (; code_point != 0 || digits.empty(); code_point >>= 4) digits += kHex[code_point & 15U];
  std::reverse(digits.begin(), digits.end());
  out += "\\x{" + digits + "}";
}

// The characters of a general category (one or two letters) that are new since Unicode 14, as
// members of a class.
std::string added_to_category(std::string_view category) {
  std::string out;
  for (const NewCharacters& range : new_characters()) {
    if (!range.category.starts_with(category)) continue;
    append_escape(range.first, out);
    out += '-';
    append_escape(range.last, out);
  }
  return out;
}

bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  Result<std::string> run() {
    if (utf8::valid_prefix(in_) != in_.size()) {
      return Status(Code::kInvalidFile, "pattern", "not UTF-8");
    }
    while (at_ < in_.size()) ML_RETURN_IF_ERROR(item());
    if (groups_.size() > 1) return refuse("a group that is never closed", at_);
    return std::move(out_);
  }

 private:
  // What a quantifier would apply to.
  enum class Atom : std::uint8_t { kNone, kConsumes, kAssertion };
  struct Group {
    bool caseless = false;
    bool assertion = false;
  };
  // One member of a class, or an escape: a code point or a set of them.
  struct Member {
    bool is_set = false;
    char32_t code_point = 0;
    std::string property;  // of a set, as in \p{property}; empty when `added` is all
    std::string added;     // members beside the property
    bool negated = false;  // of a set: everything else
  };
  static Member character(char32_t code_point) { return {false, code_point, {}, {}, false}; }
  static Member set(std::string property, std::string added, bool negated) {
    return {true, 0, std::move(property), std::move(added), negated};
  }

  Status refuse(std::string_view what, std::size_t at) const {
    return Status(Code::kUnsupported, "pattern",
                  std::string(what) + " (at byte " + std::to_string(at) + ") in \"" +
                      std::string(in_.substr(0, 200)) + "\"");
  }
  bool caseless() const { return groups_.back().caseless; }
  bool looking_at(std::string_view text) const { return in_.substr(at_).starts_with(text); }

  Status item() {
    const std::size_t begin = at_;
    const char c = in_[at_];
    switch (c) {
      case '(':
        return open_group();
      case ')': {
        if (groups_.size() == 1) return refuse("an unmatched )", begin);
        atom_ = groups_.back().assertion ? Atom::kAssertion : Atom::kConsumes;
        groups_.pop_back();
        return copy(1);
      }
      case '|':
        atom_ = Atom::kNone;
        return copy(1);
      case '^':
      case '$':
        atom_ = Atom::kAssertion;
        return copy(1);
      case '.':
        atom_ = Atom::kConsumes;
        return copy(1);
      case '*':
      case '+':
      case '?':
      case '{':
        return quantifier();
      case '[':
        return char_class();
      case '\\':
        if (looking_at("\\A") || looking_at("\\z")) {
          atom_ = Atom::kAssertion;
          return copy(2);
        }
        break;
      default:
        break;
    }
    ML_ASSIGN_OR_RETURN(const Member member, this->member());
    atom_ = Atom::kConsumes;
    if (member.is_set) {
      run_.clear();
      out_ += member.negated ? "[^" : "[";
      if (!member.property.empty()) out_ += "\\p{" + member.property + "}";
      out_ += member.added + "]";
      return {};
    }
    ML_RETURN_IF_ERROR(check_caseless(member.code_point, begin));
    emit(member.code_point);
    return {};
  }

  // Copies `count` bytes of syntax that is the same in both.
  Status copy(std::size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
    run_.clear();
    return {};
  }

  Status check_caseless(char32_t code_point, std::size_t at) {
    if (!caseless()) return {};
    if (code_point >= 0x80) return refuse("a character beyond ASCII under (?i)", at);
    const char lower =
        static_cast<char>(code_point | (code_point >= 'A' && code_point <= 'Z' ? 32U : 0U));
    run_ += lower;
    for (const std::string_view fold : kMultiFolds) {
      if (run_.ends_with(fold)) {
        return refuse(
            "\"" + std::string(fold) + "\" under (?i), which has one-character equivalents", at);
      }
    }
    return {};
  }

  void emit(char32_t code_point) {
    if (code_point < 0x80) {
      const char c = static_cast<char>(code_point);
      if (c < 0x20 || c == 0x7f) {
        constexpr std::string_view kHex = "0123456789abcdef";
        out_ += "\\x{";
        out_ += kHex[code_point >> 4];
        out_ += kHex[code_point & 15U];
        out_ += '}';
        return;
      }
      if (!is_alnum(c) && c != ' ') out_ += '\\';
      out_ += c;
      return;
    }
    utf8::append_code_point(code_point, out_);
  }

  Status open_group() {
    struct Form {
      std::string_view text;
      bool assertion;
      int caseless;  // 1 on, -1 off, 0 as around it
    };
    constexpr std::array<Form, 8> kForms = {{{"(?:", false, 0},
                                             {"(?>", false, 0},
                                             {"(?=", true, 0},
                                             {"(?!", true, 0},
                                             {"(?<=", true, 0},
                                             {"(?<!", true, 0},
                                             {"(?i:", false, 1},
                                             {"(?-i:", false, -1}}};
    Group group{caseless(), false};
    atom_ = Atom::kNone;
    for (const Form& form : kForms) {
      if (!looking_at(form.text)) continue;
      group.assertion = form.assertion;
      if (form.caseless != 0) group.caseless = form.caseless > 0;
      groups_.push_back(group);
      return copy(form.text.size());
    }
    if (looking_at("(?") || looking_at("(*")) {
      return refuse("the group form " + std::string(in_.substr(at_, 4)), at_);
    }
    // Nothing refers to what a group captured, so nothing needs to be captured.
    groups_.push_back(group);
    out_ += "(?:";
    ++at_;
    run_.clear();
    return {};
  }

  Status quantifier() {
    const std::size_t begin = at_;
    if (atom_ != Atom::kConsumes) return refuse("a quantifier after nothing it can repeat", begin);
    atom_ = Atom::kNone;
    bool interval = false;
    bool exact = false;
    if (in_[at_] == '{') {
      std::size_t end = at_ + 1;
      while (end < in_.size() && is_digit(in_[end])) ++end;
      const bool has_low = end > at_ + 1;
      exact = true;
      if (end < in_.size() && in_[end] == ',') {
        exact = false;
        ++end;
        while (end < in_.size() && is_digit(in_[end])) ++end;
      }
      if (!has_low || end >= in_.size() || in_[end] != '}') {
        return refuse("an interval other than {n}, {n,} and {n,m}", begin);
      }
      // s{2} under (?i) is "ss" there: see kMultiFolds.
      if (caseless()) return refuse("an interval under (?i)", begin);
      interval = true;
      ML_RETURN_IF_ERROR(copy(end + 1 - at_));
    } else {
      ML_RETURN_IF_ERROR(copy(1));
    }
    if (at_ >= in_.size()) return {};
    const char suffix = in_[at_];
    if (suffix == '+') {
      if (interval) return refuse("an interval followed by +", begin);
      return copy(1);
    }
    if (suffix == '?') {
      if (exact) return refuse("{n} followed by ?", begin);
      return copy(1);
    }
    return {};
  }

  // A character or an escape at at_, as a code point or as a set that may stand inside [...].
  Result<Member> member() {
    const std::size_t begin = at_;
    if (in_[at_] != '\\') {
      const utf8::Step step = utf8::step(in_, at_);
      at_ += step.length;
      return character(step.code_point);
    }
    if (at_ + 1 >= in_.size()) return refuse("a backslash at the end", begin);
    const char c = in_[at_ + 1];
    at_ += 2;
    switch (c) {
      case 't':
        return character('\t');
      case 'n':
        return character('\n');
      case 'v':
        return character('\v');
      case 'f':
        return character('\f');
      case 'r':
        return character('\r');
      case 'a':
        return character(7);
      case 'e':
        return character(27);
      case 'd':
      case 'D':
        return set("Nd", added_to_category("Nd"), c == 'D');
      case 's':
      case 'S':
        return set("White_Space", "", c == 'S');
      case 'w':
      case 'W':
        // Oniguruma counts six numbers of Latin-1 among word characters.
        return set("", word_characters() + "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}", c == 'W');
      case 'p':
      case 'P':
        return property(c, begin);
      case 'x':
      case 'u':
        return hexadecimal(c, begin);
      default:
        break;
    }
    if (is_alnum(c) || static_cast<unsigned char>(c) >= 0x80) {
      return refuse("the escape \\" + std::string(1, c), begin);
    }
    return character(static_cast<char32_t>(c));
  }

  Result<Member> hexadecimal(char form, std::size_t begin) {
    std::size_t digits = form == 'u' ? 4 : 2;
    bool braces = false;
    if (form == 'x' && at_ < in_.size() && in_[at_] == '{') {
      braces = true;
      ++at_;
      const std::size_t close = in_.find('}', at_);
      if (close == std::string_view::npos) return refuse("\\x{ without }", begin);
      digits = close - at_;
    }
    if (digits == 0 || digits > 6 || at_ + digits > in_.size()) {
      return refuse("a malformed hexadecimal escape", begin);
    }
    char32_t value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      const char c = in_[at_ + i];
      char32_t nibble = 0;
      if (is_digit(c)) {
        nibble = static_cast<char32_t>(c - '0');
      } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
        nibble = static_cast<char32_t>((c | 32) - 'a') + 10;
      } else {
        return refuse("a malformed hexadecimal escape", begin);
      }
      value = value * 16 + nibble;
    }
    at_ += digits + (braces ? 1 : 0);
    // \xHH beyond ASCII is a bare byte there, not a character.
    if ((form == 'x' && !braces && value >= 0x80) || value > 0x10FFFF ||
        (value >= 0xD800 && value <= 0xDFFF)) {
      return refuse("an escape that is no character", begin);
    }
    return character(value);
  }

  Result<Member> property(char form, std::size_t begin) {
    const std::size_t close = in_.find('}', at_);
    if (at_ >= in_.size() || in_[at_] != '{' || close == std::string_view::npos) {
      return refuse("\\p without {name}", begin);
    }
    std::string_view name = in_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    bool negated = form == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    // Case pairs widen Lu, Ll and Lt differently.
    if (caseless()) return refuse("\\p under (?i)", begin);
    if (std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end()) {
      return set(std::string(name), added_to_category(name), negated);
    }
    for (const Script& script : kScripts) {
      if (script.name == name) {
        return set("sc:" + std::string(name), std::string(script.added), negated);
      }
    }
    return refuse("the property \\p{" + std::string(name.substr(0, 40)) + "}", begin);
  }

  Status char_class() {
    const std::size_t begin = at_;
    run_.clear();
    ++at_;
    out_ += '[';
    if (at_ < in_.size() && in_[at_] == '^') {
      out_ += '^';
      ++at_;
    }
    bool empty = true;
    for (;;) {
      if (at_ >= in_.size()) return refuse("a class that is never closed", begin);
      if (in_[at_] == ']') {
        if (empty) return refuse("an empty class, or one that begins with ]", begin);
        ++at_;
        break;
      }
      if (in_[at_] == '[') return refuse("a class inside a class", at_);
      if (looking_at("&&")) return refuse("an intersection of classes", at_);
      ML_RETURN_IF_ERROR(class_item(empty));
      empty = false;
    }
    out_ += ']';
    atom_ = Atom::kConsumes;
    return {};
  }

  Status class_item(bool first) {
    const std::size_t begin = at_;
    // A bare - is itself only where it can't be part of a range: first or last.
    if (in_[at_] == '-' && !first && (at_ + 1 >= in_.size() || in_[at_ + 1] != ']')) {
      return refuse("a - that is neither a range nor at an end of its class", begin);
    }
    ML_ASSIGN_OR_RETURN(const Member low, member());
    const bool range = at_ + 1 < in_.size() && in_[at_] == '-' && in_[at_ + 1] != ']';
    if (low.is_set) {
      if (range) return refuse("a range that begins with a set", begin);
      if (low.negated && !low.added.empty()) {
        return refuse("a negated set inside a class", begin);
      }
      if (!low.property.empty()) {
        out_ += (low.negated ? "\\P{" : "\\p{") + low.property + "}";
      }
      out_ += low.added;
      return {};
    }
    if (caseless() && low.code_point >= 0x80) {
      return refuse("a character beyond ASCII under (?i)", begin);
    }
    emit(low.code_point);
    if (!range) return {};
    ++at_;
    if (in_[at_] == '[') return refuse("a class inside a class", at_);
    ML_ASSIGN_OR_RETURN(const Member high, member());
    if (high.is_set) return refuse("a range that ends with a set", begin);
    if (caseless() && high.code_point >= 0x80) {
      return refuse("a character beyond ASCII under (?i)", begin);
    }
    if (high.code_point < low.code_point) return refuse("a range that runs backwards", begin);
    out_ += '-';
    emit(high.code_point);
    return {};
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  std::string run_;  // literal characters since the last thing that was none, under (?i)
  std::vector<Group> groups_{Group{}};
  Atom atom_ = Atom::kNone;
};

}  // namespace

std::string word_characters() {
  std::string out = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
  for (const std::string_view category : {"L", "M", "Nd", "Nl", "Pc"}) {
    out += added_to_category(category);
  }
  return out;
}

Result<std::string> translate_oniguruma(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace monolayer

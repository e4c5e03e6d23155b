// Regular expressions of tokenizer files, run by PCRE2 under limits.
//
// The files are written for Oniguruma (Oniguruma syntax, UTF-8), where some constructs mean another
// thing than in PCRE2: \s, \w, \v and \h, scripts, intervals followed by + or ?, nested classes.
// The pattern is therefore translated construct by construct; one that has no exact counterpart is
// refused by name instead of being matched a little differently.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "core/status.h"

namespace monolayer {

// The PCRE2 pattern (UTF | UCP | MULTILINE, newline is LF) that matches what `pattern` matches in
// Oniguruma. kUnsupported names the construct that can't be translated, with its byte offset.
Result<std::string> translate_oniguruma(std::string_view pattern);

// Unicode's word characters (Alphabetic, marks, decimal digits, connectors), as members of a PCRE2
// class.
std::string word_characters();

// Memory one thread needs while matching. Made by each thread, used with any Regex.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A compiled pattern: immutable, shared by any number of threads.
class Regex {
 public:
  struct Match {
    bool found = false;
    std::size_t begin = 0;  // bytes of the text
    std::size_t end = 0;
  };

  // A pattern in Oniguruma's syntax (`oniguruma`), already in PCRE2's (`pcre2`), or plain text.
  static Result<Regex> oniguruma(std::string_view pattern);
  static Result<Regex> pcre2(std::string_view pattern);
  static Result<Regex> literal(std::string_view text);

  // The first match that begins at or after `start`. `text` must be well-formed UTF-8 and `start` a
  // character's first byte. Fails with kResourceExhausted when the pattern needs more than 10
  // million steps or 64 MiB for one match.
  Result<Match> find(std::string_view text, std::size_t start, RegexScratch& scratch) const;

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> code) : code_(std::move(code)) {}
  std::shared_ptr<const Compiled> code_;
};

}  // namespace monolayer

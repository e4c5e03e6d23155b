#include "checkpoint/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// One [set] at pattern[at] == '['. Returns the index after it, or npos when it never closes.
std::size_t match_set(std::string_view pattern, std::size_t at, char c, bool& matched) {
  std::size_t i = at + 1;
  const bool negated = i < pattern.size() && pattern[i] == '!';
  if (negated) ++i;
  const std::size_t first = i;
  bool inside = false;
  for (; i < pattern.size() && (pattern[i] != ']' || i == first); ++i) {
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      inside = inside || (pattern[i] <= c && c <= pattern[i + 2]);
      i += 2;
    } else {
      inside = inside || pattern[i] == c;
    }
  }
  if (i >= pattern.size()) return std::string_view::npos;
  matched = inside != negated;
  return i + 1;
}

// Matches one character; returns the index after the pattern element, or npos.
std::size_t match_one(std::string_view pattern, std::size_t at, char c) {
  if (at >= pattern.size()) return std::string_view::npos;
  if (pattern[at] == '?') return at + 1;
  if (pattern[at] == '[') {
    bool matched = false;
    const std::size_t after = match_set(pattern, at, c, matched);
    if (after != std::string_view::npos) return matched ? after : std::string_view::npos;
  }
  return pattern[at] == c ? at + 1 : std::string_view::npos;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0;
  // Where to resume after the latest *: one more character goes to it. Earlier stars never need to
  // be reconsidered.
  std::size_t star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_text = t;
      continue;
    }
    const std::size_t next = match_one(pattern, p, text[t]);
    if (next != std::string_view::npos) {
      p = next;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<std::string> module_spellings(std::string_view module) {
  constexpr std::array<std::string_view, 5> kPrefixes = {
      "model.language_model.", "language_model.model.", "language_model.", "model.", ""};
  std::string_view core = module;
  for (const std::string_view prefix : kPrefixes) {
    if (core.substr(0, prefix.size()) == prefix) {
      core.remove_prefix(prefix.size());
      break;
    }
  }
  std::vector<std::string> spellings{std::string(module)};
  for (const std::string_view prefix : kPrefixes) {
    std::string name(prefix);
    name.append(core);
    if (name != module) spellings.push_back(std::move(name));
  }
  return spellings;
}

struct ModulePatterns::Regex {
  std::string text;
  std::unique_ptr<pcre2_code, FreeCode> code;
};

ModulePatterns::ModulePatterns() = default;
ModulePatterns::~ModulePatterns() = default;
ModulePatterns::ModulePatterns(ModulePatterns&&) noexcept = default;
ModulePatterns& ModulePatterns::operator=(ModulePatterns&&) noexcept = default;

Status ModulePatterns::add(std::string_view pattern, const std::string& file,
                           const std::string& field) {
  if (pattern.substr(0, 3) == "re:") {
    const std::string_view text = pattern.substr(3);
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                      PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
    if (code == nullptr) {
      return {Code::kInvalidFile, file,
              field + ": " + quote_name(pattern) + " is no valid regular expression at byte " +
                  std::to_string(offset + 3)};
    }
    regexes_.push_back({std::string(pattern), std::unique_ptr<pcre2_code, FreeCode>(code)});
    return ok_status();
  }
  if (pattern.find_first_of("*?[") != std::string_view::npos) {
    globs_.emplace_back(pattern);
  } else if (!pattern.empty()) {
    if (pattern.ends_with(".weight")) pattern.remove_suffix(7);
    names_.emplace(pattern);
  }
  return ok_status();
}

Result<bool> ModulePatterns::matches(const std::vector<std::string>& spellings) const {
  for (const std::string& name : spellings) {
    if (names_.empty()) break;
    // Every run of components: starts after a dot or at 0, ends before a dot or at the end.
    for (std::size_t begin = 0; begin != std::string::npos;) {
      for (std::size_t end = begin; end != std::string::npos;) {
        end = name.find('.', end);
        if (names_.count(name.substr(begin, end == std::string::npos ? end : end - begin)) != 0)
          return true;
        if (end != std::string::npos) ++end;
      }
      begin = name.find('.', begin);
      if (begin != std::string::npos) ++begin;
    }
  }
  for (const std::string& glob : globs_) {
    for (const std::string& name : spellings) {
      if (glob_matches(glob, name)) return true;
    }
  }
  if (regexes_.empty()) return false;
  const std::unique_ptr<pcre2_match_context, FreeContext> context(
      pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_match_data, FreeMatch> data(pcre2_match_data_create(1, nullptr));
  if (context == nullptr || data == nullptr)
    return Status(Code::kResourceExhausted, "regular expression", "not enough memory");
  // Far above what any sane pattern needs on a name of a hundred bytes.
  pcre2_set_match_limit(context.get(), 100'000);
  pcre2_set_heap_limit(context.get(), 1024);
  for (const Regex& regex : regexes_) {
    for (const std::string& name : spellings) {
      const int rc = pcre2_match(regex.code.get(), reinterpret_cast<PCRE2_SPTR>(name.data()),
                                 name.size(), 0, 0, data.get(), context.get());
      if (rc >= 0) return true;
      if (rc != PCRE2_ERROR_NOMATCH) {
        return Status(Code::kResourceExhausted, quote_name(regex.text),
                      "takes too many steps on module " + quote_name(name));
      }
    }
  }
  return false;
}

}  // namespace monolayer

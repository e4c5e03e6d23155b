// Lists of module name patterns, as quantization configs use them. Internal to this room; the three
// kinds of pattern are described in quantization.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/status.h"

namespace monolayer {

// A shell pattern: * any run of characters, ? one, [abc] [a-z] [!abc] one of a set; an unclosed [
// is itself. Time at most proportional to the product of the lengths.
bool glob_matches(std::string_view pattern, std::string_view text);

// `module` as stored and under every spelling of the wrapper prefix, without repeats.
std::vector<std::string> module_spellings(std::string_view module);

// A set of patterns that answers for all of them at once; plain names cost one hash lookup each
// however many there are.
class ModulePatterns {
 public:
  ModulePatterns();
  ~ModulePatterns();
  ModulePatterns(ModulePatterns&&) noexcept;
  ModulePatterns& operator=(ModulePatterns&&) noexcept;

  // kInvalidFile, naming `file` and `field`, for a regular expression that does not compile.
  Status add(std::string_view pattern, const std::string& file, const std::string& field);

  // Whether any pattern matches any of `spellings`. kResourceExhausted, naming the pattern, when a
  // regular expression takes too many steps.
  Result<bool> matches(const std::vector<std::string>& spellings) const;

 private:
  struct Regex;
  std::unordered_set<std::string> names_;
  std::vector<std::string> globs_;
  std::vector<Regex> regexes_;
};

}  // namespace monolayer

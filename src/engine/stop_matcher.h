// Stop strings in text that arrives in pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace monolayer::engine {

// The match that is complete first wins, the longest of those complete at the same byte: so the
// result is the same however the text was cut. Text that may still become a match is held back.
// Linear in the text for a given set of stop strings.
class StopMatcher {
 public:
  // Empty strings are ignored. `include`: the text keeps the stop string itself.
  StopMatcher(std::vector<std::string> stops, bool include);

  // The text that became certain. While not `armed`, matches are passed over. After a match
  // nothing more is returned.
  std::string push(std::string_view text, bool armed = true);
  // No more text: what was held back.
  std::string finish();
  // The stop string that matched.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<std::size_t> fallback;  // Knuth-Morris-Pratt
    std::size_t state = 0;              // bytes of `text` that the input ends with
  };
  std::vector<Pattern> patterns_;
  bool include_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace monolayer::engine

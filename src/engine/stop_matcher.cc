#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace monolayer::engine {
namespace {

// fallback[n]: the longest proper beginning of the text that is also an end of its first n bytes.
std::vector<std::size_t> fallbacks(const std::string& text) {
  std::vector<std::size_t> table(text.size() + 1, 0);
  std::size_t state = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    while (state > 0 && text[i] != text[state]) state = table[state];
    if (text[i] == text[state]) ++state;
    table[i + 1] = state;
  }
  return table;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include) : include_(include) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern pattern;
    pattern.fallback = fallbacks(stop);
    pattern.text = std::move(stop);
    patterns_.push_back(std::move(pattern));
  }
}

std::string StopMatcher::push(std::string_view text, bool armed) {
  if (matched_) return {};
  if (patterns_.empty()) return std::string(text);
  for (const char c : text) {
    held_.push_back(c);
    const Pattern* longest = nullptr;
    for (Pattern& pattern : patterns_) {
      std::size_t state = pattern.state;
      if (state == pattern.text.size()) state = pattern.fallback[state];
      while (state > 0 && pattern.text[state] != c) state = pattern.fallback[state];
      if (pattern.text[state] == c) ++state;
      pattern.state = state;
      const bool complete = state == pattern.text.size();
      if (complete && (longest == nullptr || pattern.text.size() > longest->text.size()))
        longest = &pattern;
    }
    if (longest == nullptr || !armed) continue;
    matched_ = longest->text;
    if (!include_) held_.resize(held_.size() - longest->text.size());
    return std::exchange(held_, {});
  }
  std::size_t open = 0;
  for (const Pattern& pattern : patterns_) {
    const bool passed = pattern.state == pattern.text.size();
    open = std::max(open, passed ? pattern.fallback[pattern.state] : pattern.state);
  }
  // A passed-over match may have been longer than what is still held.
  open = std::min(open, held_.size());
  std::string ready = held_.substr(0, held_.size() - open);
  held_.erase(0, held_.size() - open);
  return ready;
}

std::string StopMatcher::finish() { return matched_ ? std::string() : std::exchange(held_, {}); }

}  // namespace monolayer::engine

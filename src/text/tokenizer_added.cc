#include "text/tokenizer_added.h"

#include <algorithm>

#include "text/utf8.h"

namespace monolayer {
namespace {

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Begin of the last character of a non-empty well-formed text.
std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) --at;
  return at;
}

}  // namespace

Result<AddedTokenMatcher> AddedTokenMatcher::create(const std::vector<AddedToken>& tokens) {
  AddedTokenMatcher matcher;
  matcher.tokens_ = tokens;
  matcher.nodes_.emplace_back();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::uint32_t node = 0;
    for (const char c : tokens[i].content) {
      const auto byte = static_cast<std::uint8_t>(c);
      auto& children = matcher.nodes_[node].children;
      const auto it =
          std::lower_bound(children.begin(), children.end(), byte,
                           [](const auto& edge, std::uint8_t value) { return edge.first < value; });
      if (it != children.end() && it->first == byte) {
        node = it->second;
        continue;
      }
      const auto child = static_cast<std::uint32_t>(matcher.nodes_.size());
      children.insert(it, {byte, child});
      matcher.nodes_.emplace_back();
      node = child;
    }
    matcher.nodes_[node].token = static_cast<std::int32_t>(i);
    matcher.first_[static_cast<std::uint8_t>(tokens[i].content[0])] = true;
    if (tokens[i].single_word && !matcher.word_.has_value()) {
      // With the joiners: Rust's \w.
      std::string one_word_character = "[\\x{200C}\\x{200D}";
      one_word_character += word_characters() += ']';
      ML_ASSIGN_OR_RETURN(matcher.word_, Regex::pcre2(one_word_character));
    }
  }
  return matcher;
}

AddedTokenMatcher::Hit AddedTokenMatcher::longest_at(std::string_view text, std::size_t begin,
                                                     std::size_t end) const {
  Hit hit;
  std::uint32_t node = 0;
  for (std::size_t at = begin; at < end; ++at) {
    const auto byte = static_cast<std::uint8_t>(text[at]);
    const auto& children = nodes_[node].children;
    const auto it =
        std::lower_bound(children.begin(), children.end(), byte,
                         [](const auto& edge, std::uint8_t value) { return edge.first < value; });
    if (it == children.end() || it->first != byte) break;
    node = it->second;
    if (nodes_[node].token >= 0) hit = {nodes_[node].token, at + 1};
  }
  return hit;
}

Result<bool> AddedTokenMatcher::is_word(std::string_view character, RegexScratch& scratch) const {
  ML_ASSIGN_OR_RETURN(const Regex::Match match, word_->find(character, 0, scratch));
  return match.found;
}

Result<bool> AddedTokenMatcher::stands_alone(std::string_view text, std::size_t begin,
                                             std::size_t end, RegexScratch& scratch) const {
  if (begin > 0) {
    const std::string_view before = text.substr(0, begin);
    ML_ASSIGN_OR_RETURN(const bool word, is_word(before.substr(last_character(before)), scratch));
    if (word) return false;
  }
  if (end < text.size()) {
    const std::string_view after = text.substr(end, utf8::step(text, end).length);
    ML_ASSIGN_OR_RETURN(const bool word, is_word(after, scratch));
    if (word) return false;
  }
  return true;
}

Status AddedTokenMatcher::split(std::string_view whole, TextSpan range,
                                std::span<const TextSpan> literal, RegexScratch& scratch,
                                std::vector<Part>& out) const {
  const std::string_view text = whole.substr(0, range.end);
  std::size_t covered = range.begin;  // everything before is in `out`
  std::size_t open = range.begin;     // begin of the current stretch outside `literal`
  std::size_t next_literal = 0;
  while (!empty() && open < range.end) {
    // The stretch up to the next literal span.
    while (next_literal < literal.size() && literal[next_literal].end <= open) ++next_literal;
    std::size_t close = range.end;
    if (next_literal < literal.size()) {
      if (literal[next_literal].begin <= open) {
        open = std::min(literal[next_literal].end, range.end);
        continue;
      }
      close = std::min(close, literal[next_literal].begin);
    }
    for (std::size_t at = open; at < close;) {
      if (!first_[static_cast<std::uint8_t>(text[at])]) {
        ++at;
        continue;
      }
      const Hit hit = longest_at(text, at, close);
      if (hit.token < 0) {
        ++at;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<std::size_t>(hit.token)];
      std::size_t begin = at;
      std::size_t end = hit.end;
      at = hit.end;  // also when the token is turned down: the search goes on behind it
      if (token.single_word) {
        ML_ASSIGN_OR_RETURN(const bool alone,
                            stands_alone(text.substr(range.begin), begin - range.begin,
                                         end - range.begin, scratch));
        if (!alone) continue;
      }
      if (token.lstrip) {
        const std::size_t floor = std::max(open, covered);
        while (begin > floor) {
          const std::size_t last = last_character(text.substr(0, begin));
          if (last < floor || !is_white_space(utf8::step(text, last).code_point)) break;
          begin = last;
        }
      }
      if (token.rstrip) {
        while (end < close) {
          const utf8::Step step = utf8::step(text, end);
          if (!is_white_space(step.code_point)) break;
          end += step.length;
        }
      }
      if (covered < begin) out.push_back({-1, covered, begin});
      out.push_back({token.id, begin, end});
      covered = end;
    }
    open = close;
  }
  if (covered < range.end) out.push_back({-1, covered, range.end});
  return {};
}

}  // namespace monolayer

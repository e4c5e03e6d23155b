// Splitting generated text into reasoning and content.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace monolayer {

// What the request asked for. It decides how the prompt ended, and so where the text begins: the
// prompt itself is never scanned, since every prompt holds both marks.
enum class ThinkingMode : std::uint8_t {
  kEnabled,   // the prompt ended with <mm:think>: the text begins inside reasoning
  kDisabled,  // the prompt ended with </mm:think>: all text is content
  kAdaptive,  // the first mark of the text decides
};

// "enabled" and "disabled"; anything else is rendered, and so read, as adaptive.
ThinkingMode thinking_mode(std::string_view name);

struct ReasoningDelta {
  std::string reasoning;
  std::string content;
  bool empty() const { return reasoning.empty() && content.empty(); }
};

// Streaming. The deltas of all calls joined are the same however the text was cut into pieces.
//
// Only the first block is reasoning. It ends at </mm:think> or where a tool call begins; if neither
// comes, all text is reasoning. A closing mark at the very start of content, or right after another
// one, is dropped; later ones are text. A text that opens with the older <think> closes with
// </think>. White space before a leading mark is dropped with it.
class ReasoningParser {
 public:
  explicit ReasoningParser(ThinkingMode mode);
  // The next piece of decoded text. Holds back an end that may be the beginning of a mark.
  ReasoningDelta push(std::string_view text);
  // No more text: what was held back.
  ReasoningDelta finish();
  // Whether text pushed now would be reasoning.
  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State : std::uint8_t {
    kUndecided,  // adaptive, nothing but white space so far
    kOpened,     // at the start of reasoning: a repeated opening mark is dropped
    kReasoning,
    kContentStart,  // closing marks are dropped
    kContent,
  };
  bool step(bool last, ReasoningDelta* out);
  bool leading(bool last, ReasoningDelta* out);
  bool reasoning(bool last, ReasoningDelta* out);

  State state_;
  std::string_view closer_;
  std::string held_;
};

// The whole text at once.
ReasoningDelta split_reasoning(std::string_view text, ThinkingMode mode);

}  // namespace monolayer

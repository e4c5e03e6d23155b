#include "text/reasoning.h"

#include <algorithm>

namespace monolayer {

namespace {

constexpr std::string_view kOpen = "<mm:think>";
constexpr std::string_view kClose = "</mm:think>";
constexpr std::string_view kOldOpen = "<think>";
constexpr std::string_view kOldClose = "</think>";
constexpr std::string_view kToolCall = "]<]minimax[>[<tool_call>";

bool starts_with(std::string_view text, std::string_view mark) {
  return text.substr(0, mark.size()) == mark;
}

// Whether `text` could grow into `mark`.
bool may_become(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && starts_with(mark, text);
}

// The length of the longest end of `text` that could grow into `mark`.
std::size_t open_end(std::string_view text, std::string_view mark) {
  for (std::size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

ThinkingMode thinking_mode(std::string_view name) {
  if (name == "enabled") return ThinkingMode::kEnabled;
  if (name == "disabled") return ThinkingMode::kDisabled;
  return ThinkingMode::kAdaptive;
}

ReasoningParser::ReasoningParser(ThinkingMode mode)
    : state_(mode == ThinkingMode::kEnabled    ? State::kOpened
             : mode == ThinkingMode::kDisabled ? State::kContentStart
                                               : State::kUndecided),
      closer_(kClose) {}

ReasoningDelta ReasoningParser::push(std::string_view text) {
  held_.append(text);
  ReasoningDelta out;
  while (step(false, &out)) {
  }
  return out;
}

ReasoningDelta ReasoningParser::finish() {
  ReasoningDelta out;
  while (step(true, &out)) {
  }
  return out;
}

// Moves text out of `held_` or changes state; false if it can do neither.
bool ReasoningParser::step(bool last, ReasoningDelta* out) {
  if (held_.empty()) return false;
  switch (state_) {
    case State::kUndecided:
    case State::kOpened:
    case State::kContentStart:
      return leading(last, out);
    case State::kReasoning:
      return reasoning(last, out);
    case State::kContent:
      out->content += held_;
      held_.clear();
      return true;
  }
  return false;
}

bool ReasoningParser::leading(bool last, ReasoningDelta*) {
  const std::size_t begin = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
  const std::string_view text = std::string_view(held_).substr(begin);
  const auto drop = [&](std::string_view mark, State next) {
    held_.erase(0, begin + mark.size());
    state_ = next;
    return true;
  };
  const bool may_open = state_ != State::kContentStart;
  const bool may_close = state_ != State::kOpened;
  if (may_open && starts_with(text, kOpen)) return drop(kOpen, State::kReasoning);
  if (may_close && starts_with(text, kClose)) return drop(kClose, State::kContentStart);
  if (state_ == State::kUndecided && starts_with(text, kOldOpen)) {
    closer_ = kOldClose;
    return drop(kOldOpen, State::kReasoning);
  }
  const bool waiting = (may_open && may_become(text, kOpen)) ||
                       (may_close && may_become(text, kClose)) ||
                       (state_ == State::kUndecided && may_become(text, kOldOpen));
  if (waiting && !last) return false;
  state_ = state_ == State::kOpened ? State::kReasoning : State::kContent;
  return true;
}

bool ReasoningParser::reasoning(bool last, ReasoningDelta* out) {
  const std::size_t close = held_.find(closer_);
  const std::size_t tool = held_.find(kToolCall);
  if (close != std::string::npos && close < tool) {
    out->reasoning.append(held_, 0, close);
    held_.erase(0, close + closer_.size());
    state_ = State::kContentStart;
    return true;
  }
  if (tool != std::string::npos) {
    out->reasoning.append(held_, 0, tool);
    held_.erase(0, tool);
    state_ = State::kContent;
    return true;
  }
  const std::size_t open =
      last ? 0 : std::max(open_end(held_, closer_), open_end(held_, kToolCall));
  const std::size_t ready = held_.size() - open;
  if (ready == 0) return false;
  out->reasoning.append(held_, 0, ready);
  held_.erase(0, ready);
  return true;
}

ReasoningDelta split_reasoning(std::string_view text, ThinkingMode mode) {
  ReasoningParser parser(mode);
  ReasoningDelta whole = parser.push(text);
  const ReasoningDelta rest = parser.finish();
  whole.reasoning += rest.reasoning;
  whole.content += rest.content;
  return whole;
}

}  // namespace monolayer

// Generated text to what a client sees: reasoning, content and tool calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/tool_parser.h"
#include "text/reasoning.h"

namespace monolayer::server {

struct AnswerDelta {
  std::string reasoning;
  std::vector<ToolEvent> events;
  bool empty() const { return reasoning.empty() && events.empty(); }
};

class AnswerParser {
 public:
  AnswerParser(ThinkingMode mode, ToolParser tools) : reasoning_(mode), tools_(std::move(tools)) {}

  AnswerDelta push(std::string_view text) { return split(reasoning_.push(text), false); }
  AnswerDelta finish() { return split(reasoning_.finish(), true); }
  std::int64_t calls() const { return tools_.calls(); }

 private:
  AnswerDelta split(ReasoningDelta delta, bool last) {
    AnswerDelta out;
    out.reasoning = std::move(delta.reasoning);
    if (!delta.content.empty()) out.events = tools_.push(delta.content);
    if (!last) return out;
    for (ToolEvent& event : tools_.finish()) out.events.push_back(std::move(event));
    return out;
  }
  ReasoningParser reasoning_;
  ToolParser tools_;
};

}  // namespace monolayer::server

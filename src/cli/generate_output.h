// The reply as it comes: on stdout for people, collected for JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/prompt.h"
#include "text/reasoning.h"
#include "text/stream_decoder.h"

namespace monolayer::cli {

// One line a setting, on stderr.
void print_configuration(const nlohmann::ordered_json& settings);

// Whole characters only. Thinking is dimmed on a terminal and set off by an empty line elsewhere;
// its marks are not shown. With `json` nothing is printed here.
class ReplyPrinter {
 public:
  ReplyPrinter(const engine::TextModel& text, const engine::Prompt& prompt, bool json);

  // False when stdout cannot be written any more.
  bool token(std::int32_t id);
  // Why, as errno has it; 0 while it can.
  int write_error() const { return write_error_; }
  void finish();
  // Adds content, reasoning and token_ids.
  void add_to(nlohmann::json& json) const;

 private:
  void show(const ReasoningDelta& delta);
  void write(const std::string& text, bool thinking);

  StreamDecoder decoder_;
  ReasoningParser parser_;
  bool json_, terminal_;
  int write_error_ = 0;
  enum class Last : std::uint8_t { kNothing, kThinking, kContent } last_ = Last::kNothing;
  std::string content_, reasoning_;
  std::vector<std::int32_t> ids_;
};

}  // namespace monolayer::cli

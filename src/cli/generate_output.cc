#include "cli/generate_output.h"

#include <cerrno>
#include <cstdio>

#include <unistd.h>

namespace monolayer::cli {

void print_configuration(const nlohmann::ordered_json& settings) {
  for (const auto& [name, value] : settings.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    std::fprintf(stderr, "%s: %s\n", name.c_str(), text.c_str());
  }
}

ReplyPrinter::ReplyPrinter(const engine::TextModel& text, const engine::Prompt& prompt, bool json)
    : decoder_(text.tokenizer()),
      parser_(prompt.thinking),
      json_(json),
      terminal_(isatty(STDOUT_FILENO) == 1) {}

void ReplyPrinter::write(const std::string& text, bool thinking) {
  if (json_ || text.empty()) return;
  const Last now = thinking ? Last::kThinking : Last::kContent;
  if (last_ != now) {
    if (terminal_) std::fputs(thinking ? "\033[2m" : "\033[0m", stdout);
    if (last_ == Last::kThinking) std::fputs("\n\n", stdout);
    last_ = now;
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0 && write_error_ == 0) write_error_ = errno;
}

void ReplyPrinter::show(const ReasoningDelta& delta) {
  reasoning_ += delta.reasoning;
  content_ += delta.content;
  write(delta.reasoning, true);
  write(delta.content, false);
}

bool ReplyPrinter::token(std::int32_t id) {
  ids_.push_back(id);
  show(parser_.push(decoder_.push(id)));
  return write_error_ == 0;
}

void ReplyPrinter::finish() {
  show(parser_.push(decoder_.finish()));
  show(parser_.finish());
  if (json_) return;
  if (terminal_) std::fputs("\033[0m", stdout);
  std::fputc('\n', stdout);
  if (std::fflush(stdout) != 0 && write_error_ == 0) write_error_ = errno;
}

void ReplyPrinter::add_to(nlohmann::json& json) const {
  json["content"] = content_;
  json["reasoning"] = reasoning_;
  json["token_ids"] = ids_;
}

}  // namespace monolayer::cli

#include "text/stream_decoder.h"

#include <utility>

#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace monolayer {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : state_(tokenizer.state_), skip_special_(skip_special) {}

void StreamDecoder::flush_certain(std::string& out) {
  std::size_t at = 0;
  while (at < held_.size()) {
    const utf8::Step step = utf8::step(held_, at);
    if (step.kind == utf8::Kind::kIncomplete) break;
    if (step.kind == utf8::Kind::kCharacter) {
      out.append(held_, at, step.length);
    } else {
      out += utf8::kReplacement;
    }
    at += step.length;
  }
  held_.erase(0, at);
}

void StreamDecoder::flush_run(std::string& out) {
  bool broken = false;
  for (std::size_t at = 0; at < held_.size() && !broken;) {
    const utf8::Step step = utf8::step(held_, at);
    broken = step.kind != utf8::Kind::kCharacter;
    at += step.length;
  }
  if (!broken) {
    out += held_;
  } else {
    for (std::size_t i = 0; i < held_.size(); ++i) out += utf8::kReplacement;
  }
  held_.clear();
}

std::string StreamDecoder::push(std::int32_t id) {
  std::string out;
  const TokenizerState::Token* token = state_->token(id);
  if (token == nullptr || (skip_special_ && token->special)) return out;
  if (state_->symbols == TokenizerFile::Symbols::kByteLevel) {
    held_ += state_->bytes(*token);
    flush_certain(out);
  } else if (token->byte >= 0) {
    held_.push_back(static_cast<char>(token->byte));
  } else {
    flush_run(out);
    out += state_->bytes(*token);
  }
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  if (state_->symbols == TokenizerFile::Symbols::kByteLevel) {
    // Only the beginning of one character can be left.
    if (!held_.empty()) out += utf8::kReplacement;
    held_.clear();
  } else {
    flush_run(out);
  }
  return out;
}

}  // namespace monolayer

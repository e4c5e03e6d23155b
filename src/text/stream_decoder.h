// Token ids that arrive one by one to text, character by whole character.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace monolayer {

// The concatenation of what push() and finish() return is byte for byte
// Tokenizer::decode(all ids, skip_special), and each return value is well-formed UTF-8.
// Holds back at most three bytes; where the file's decoder is ByteFallback, a run of <0xNN> tokens
// is held back until it ends, since one bad byte changes all of it.
// Not thread-safe; one per sequence. Keeps the tokenizer's tables alive.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false);

  // The characters that became certain with this id; often empty.
  std::string push(std::int32_t id);
  // What was held back, broken sequences as U+FFFD. The decoder may be used anew afterwards.
  std::string finish();

 private:
  void flush_certain(std::string& out);
  void flush_run(std::string& out);

  std::shared_ptr<const TokenizerState> state_;
  std::string held_;
  bool skip_special_;
};

}  // namespace monolayer

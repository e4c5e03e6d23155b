// The text of one answer: ids to characters, up to the first stop string.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/stop_matcher.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace monolayer::engine {

struct OutputTextOptions {
  std::vector<std::string> stops;
  bool include_stop = false;
  bool skip_special = true;  // special tokens have no text
};

class OutputText {
 public:
  OutputText(const Tokenizer& tokenizer, OutputTextOptions options)
      : decoder_(tokenizer, options.skip_special),
        stops_(std::move(options.stops), options.include_stop) {}

  // The text that became certain with this token; `armed` as in StopMatcher.
  std::string push(std::int32_t id, bool armed) { return stops_.push(decoder_.push(id), armed); }
  std::string finish(bool armed) {
    std::string text = stops_.push(decoder_.finish(), armed);
    return text + stops_.finish();
  }
  const std::optional<std::string>& matched() const { return stops_.matched(); }

 private:
  StreamDecoder decoder_;
  StopMatcher stops_;
};

}  // namespace monolayer::engine

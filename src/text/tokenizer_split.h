// Pre-tokenization: a text to the pieces that are encoded one by one.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_regex.h"

namespace monolayer {

// A piece of a text, in bytes.
struct Piece {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

struct SplitScratch {
  RegexScratch regex;
  std::vector<Piece> pieces;  // the result of split()
  std::vector<Piece> other;
};

class Splitter {
 public:
  // Compiles the rules' patterns.
  static Result<Splitter> create(const std::vector<SplitRule>& rules);

  // Leaves the non-empty pieces of `text` (well-formed UTF-8, below 4 GiB) in scratch.pieces.
  Status split(std::string_view text, SplitScratch& scratch) const;

 private:
  struct Stage {
    Regex regex;
    SplitBehavior behavior;
    bool invert;
  };
  static Status split_one(const Stage& stage, std::string_view text, Piece piece,
                          RegexScratch& regex, std::vector<Piece>& out);
  std::vector<Stage> stages_;
};

}  // namespace monolayer

// Finding added tokens in a text: leftmost first, of those that begin there the longest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_regex.h"

namespace monolayer {

// Bytes begin .. end-1 of a text.
struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

class AddedTokenMatcher {
 public:
  // A part of a text: an added token, or text to encode (id -1).
  struct Part {
    std::int32_t id = -1;
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  // `tokens` by content; their ids and flags are copied.
  static Result<AddedTokenMatcher> create(const std::vector<AddedToken>& tokens);

  bool empty() const { return tokens_.empty(); }

  // Appends the parts of text[range] to `out`, in order. A token that touches one of `literal`
  // (ascending, not overlapping, offsets into `text`) is not seen, and white space in them is not
  // taken along by lstrip or rstrip. `range` is a text of its own for single_word.
  Status split(std::string_view text, TextSpan range, std::span<const TextSpan> literal,
               RegexScratch& scratch, std::vector<Part>& out) const;

 private:
  // A trie over bytes: children of a node are consecutive edges, sorted by byte.
  struct Node {
    std::int32_t token = -1;  // index into tokens_ of the token that ends here
    std::vector<std::pair<std::uint8_t, std::uint32_t>> children;
  };
  struct Hit {
    std::int32_t token = -1;
    std::size_t end = 0;
  };
  Hit longest_at(std::string_view text, std::size_t begin, std::size_t end) const;
  Result<bool> is_word(std::string_view character, RegexScratch& scratch) const;
  Result<bool> stands_alone(std::string_view text, std::size_t begin, std::size_t end,
                            RegexScratch& scratch) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> first_{};  // bytes with which some token begins
  std::optional<Regex> word_;      // one word character; only when a token is single_word
};

}  // namespace monolayer

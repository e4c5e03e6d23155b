// tokenizer.json as data: read, checked and bounded, with nothing built from it yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace monolayer {

// A token that is looked for in the text itself, before it is split into words.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;      // a control token: decode may leave it out
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space after it along
  bool single_word = false;  // only where no word character touches it
  bool normalized = false;   // looked for in the normalized text
};

// What becomes of the pieces that a pattern matched, and of those between.
enum class SplitBehavior : std::uint8_t {
  kIsolated,            // each match and each gap is a piece
  kRemoved,             // matches are dropped
  kMergedWithPrevious,  // a match joins the piece before it
  kMergedWithNext,      // a match joins the piece after it
  kContiguous,          // neighbouring matches join
};

struct SplitRule {
  bool regex = true;  // or plain text
  std::string pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // matches and gaps change places
};

struct TokenizerFile {
  // How bytes become symbols. kByteLevel: each byte is one symbol (GPT-2's printable alphabet).
  // kCharacters: each character is one, and those without a token become <0xNN> tokens.
  enum class Symbols : std::uint8_t { kByteLevel, kCharacters };

  std::vector<std::pair<std::string, std::int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // most important first
  std::vector<AddedToken> added;
  std::vector<SplitRule> splits;  // applied one after the other
  std::optional<std::string> unk_token;
  Symbols symbols = Symbols::kByteLevel;
  bool fuse_unk = false;
  bool ignore_merges = false;  // a piece that is a token is that token
  bool nfc = false;            // text is normalized to NFC first
};

// Largest file read, in bytes.
inline constexpr std::size_t kMaxTokenizerBytes = std::size_t{256} << 20;

// Reads a tokenizer.json. Errors name `name` and the field: kInvalidFile when the JSON or a value
// is malformed, kUnsupported when it asks for something this tokenizer doesn't do exactly.
// Ids, names and cross references are checked by Tokenizer, types and ranges here.
Result<TokenizerFile> parse_tokenizer_file(std::string_view json, const std::string& name);

}  // namespace monolayer

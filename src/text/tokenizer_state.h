// What a loaded tokenizer consists of. Private to this room.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer_added.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_split.h"

namespace monolayer {

// What one call of encode() works in.
struct EncodeScratch {
  SplitScratch split;
  BpeMerger merger;
  PieceCache cache;
  std::vector<std::int32_t> symbols;
};

// Scratches between calls, so that caches stay warm and memory is reused. As many are made as calls
// run at once.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> take();
  void give_back(std::unique_ptr<EncodeScratch> scratch);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> idle_;
};

struct TokenizerState {
  static constexpr std::int32_t kNoToken = -1;

  struct Token {
    std::uint32_t begin = 0;  // in bytes_of_tokens
    std::uint32_t length = 0;
    std::int16_t byte = -1;  // of a byte token <0xNN>, where those decode to bytes
    bool present = false;
    bool special = false;
  };
  struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  using IdMap = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;

  std::string name;
  std::vector<Token> tokens;      // by id
  std::string bytes_of_tokens;    // what each token decodes to
  IdMap id_of;                    // by the token as the file spells it
  IdMap whole_pieces;             // with ignore_merges: pieces that are one token
  std::vector<AddedToken> added;  // ascending by id

  TokenizerFile::Symbols symbols = TokenizerFile::Symbols::kByteLevel;
  std::array<std::int32_t, 256> byte_ids{};                  // the token of a byte, or kNoToken
  std::unordered_map<char32_t, std::int32_t> character_ids;  // kCharacters
  std::int32_t unk_id = kNoToken;
  bool fuse_unk = false;
  bool nfc = false;

  MergeTable merges;
  Splitter splitter;
  AddedTokenMatcher raw_matcher;         // added tokens looked for in the text as it is
  AddedTokenMatcher normalized_matcher;  // and in the normalized text
  mutable ScratchPool pool;

  std::string_view bytes(const Token& token) const {
    return std::string_view(bytes_of_tokens).substr(token.begin, token.length);
  }
  const Token* token(std::int32_t id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= tokens.size()) return nullptr;
    const Token& t = tokens[static_cast<std::size_t>(id)];
    return t.present ? &t : nullptr;
  }
};

// Checks what a file says against itself and builds the tables.
Result<std::shared_ptr<const TokenizerState>> build_tokenizer(const TokenizerFile& file,
                                                              const std::string& name);

// The text in Unicode normalization form C. `text` must be well-formed.
Result<std::string> normalize_nfc(std::string_view text);

}  // namespace monolayer

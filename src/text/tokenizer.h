// Byte-level BPE as Hugging Face's tokenizer.json describes it: text to token ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_file.h"

namespace monolayer {

struct TokenizerState;

struct EncodeOptions {
  // False: no added token, special or not, is recognised; the text is encoded as if the file had
  // none, so control tokens in it stay text. True: they are recognised, as `tokenizers` does.
  bool allow_special = false;
  // With allow_special: parts of the text in which none is recognised all the same, for text that
  // came from a user inside text that a template wrote. Ascending, not overlapping, inside the
  // text. A token that only touches such a part is not recognised either. Words are still formed
  // across the borders, so the ids are those of the whole text.
  std::span<const TextSpan> literal = {};
};

// Immutable after loading: one object may be used by any number of threads, and copies share it.
class Tokenizer {
 public:
  // The text limit of encode(), in bytes.
  static constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

  // Reads a tokenizer.json, or the one in a folder. kNotFound, kIoError, or as parse().
  static Result<Tokenizer> load(const std::filesystem::path& path);

  // Builds a tokenizer from a tokenizer.json's text; `name` stands for the file in messages.
  // kInvalidFile when the file is malformed or contradicts itself, kUnsupported when it asks for
  // something that isn't done exactly as `tokenizers` does it; both name the field.
  static Result<Tokenizer> parse(std::string_view json, const std::string& name);

  // The ids of `text`: what tokenizers' encode(text, add_special_tokens=False) gives. Nothing is
  // added before or after. Broken UTF-8 is encoded as if each maximal broken sequence were U+FFFD
  // (Python's errors="replace"). kInvalidArgument when the text is too long or `literal` is no
  // list of spans, kResourceExhausted when the file's pattern runs out of its limits,
  // kUnsupported for `literal` with a normalizer and added tokens that are looked for after it.
  Result<std::vector<std::int32_t>> encode(std::string_view text,
                                           const EncodeOptions& options = {}) const;

  // The text of `ids`: tokenizers' decode(ids, skip_special_tokens=skip_special). Broken UTF-8
  // becomes U+FFFD; ids that no token has yield nothing. For ids that arrive one by one see
  // StreamDecoder.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  // The bytes of one token, which may be part of a character; empty for ids that no token has.
  std::string_view token_bytes(std::int32_t id) const;
  // The id of a token as the file spells it (byte-level tokens in GPT-2's alphabet).
  std::optional<std::int32_t> id_of(std::string_view token) const;
  // One more than the largest id. A model may have more rows than this.
  std::int32_t vocab_size() const;
  // True for an added token marked special.
  bool is_special(std::int32_t id) const;
  // True for ids some token has.
  bool has_id(std::int32_t id) const;
  // Ascending by id.
  const std::vector<AddedToken>& added_tokens() const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const TokenizerState> state) : state_(std::move(state)) {}
  std::shared_ptr<const TokenizerState> state_;
};

}  // namespace monolayer

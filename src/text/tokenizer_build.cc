#include <algorithm>

#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace monolayer {
namespace {

using Symbols = TokenizerFile::Symbols;

// How many ids may be unused: twice the tokens, and some for small vocabularies.
constexpr std::size_t kSpareIds = 65536;

std::string quoted(std::string_view token) {
  std::string out = "\"";
  out += token.substr(0, 60);
  out += token.size() > 60 ? "...\"" : "\"";
  return out;
}

// GPT-2's printable alphabet: printable Latin-1 bytes are themselves, the others follow from
// U+0100.
struct ByteAlphabet {
  std::array<char32_t, 256> character{};
  std::array<std::int16_t, 512> byte{};
  ByteAlphabet() {
    byte.fill(-1);
    char32_t next = 256;
    for (char32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      character[b] = printable ? b : next++;
      byte[character[b]] = static_cast<std::int16_t>(b);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet instance;
  return instance;
}

// The bytes a byte-level token stands for; the token itself when it has other characters.
std::string byte_level_bytes(const std::string& token, bool& in_alphabet) {
  std::string out;
  in_alphabet = true;
  for (std::size_t at = 0; at < token.size();) {
    const utf8::Step step = utf8::step(token, at);
    at += step.length;
    if (step.kind != utf8::Kind::kCharacter || step.code_point >= 512 ||
        alphabet().byte[step.code_point] < 0) {
      in_alphabet = false;
      return token;
    }
    out.push_back(static_cast<char>(alphabet().byte[step.code_point]));
  }
  return out;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The value of <0xNN> with exactly two hexadecimal digits; -1 for anything else, which is text.
std::int16_t byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  return static_cast<std::int16_t>(high < 0 || low < 0 ? -1 : high * 16 + low);
}

class Builder {
 public:
  Builder(const TokenizerFile& file, const std::string& name)
      : file_(file), name_(name), state_(std::make_shared<TokenizerState>()) {}

  Result<std::shared_ptr<const TokenizerState>> run() {
    state_->name = name_;
    state_->symbols = file_.symbols;
    state_->fuse_unk = file_.fuse_unk;
    state_->nfc = file_.nfc;
    ML_RETURN_IF_ERROR(size_tokens());
    ML_RETURN_IF_ERROR(add_vocabulary());
    ML_RETURN_IF_ERROR(add_added_tokens());
    ML_RETURN_IF_ERROR(find_symbols());
    ML_RETURN_IF_ERROR(add_merges());
    if (file_.ignore_merges) add_whole_pieces();
    auto splitter = Splitter::create(file_.splits);
    if (!splitter.ok()) {
      const Status& s = splitter.status();
      return Status(s.code(), name_, "pre_tokenizer: " + s.subject() + ": " + s.message());
    }
    state_->splitter = std::move(splitter).value();
    return std::shared_ptr<const TokenizerState>(std::move(state_));
  }

 private:
  Status invalid(const std::string& message) const { return {Code::kInvalidFile, name_, message}; }

  Status size_tokens() {
    std::int32_t largest = -1;
    for (const auto& [token, id] : file_.vocab) largest = std::max(largest, id);
    for (const AddedToken& token : file_.added) largest = std::max(largest, token.id);
    const std::size_t count = file_.vocab.size() + file_.added.size();
    const std::size_t limit = 2 * count + kSpareIds;
    if (count == 0) return invalid("no tokens");
    if (static_cast<std::size_t>(largest) >= limit) {
      return invalid("the id " + std::to_string(largest) + " is too large for " +
                     std::to_string(count) + " tokens, it must be below " + std::to_string(limit));
    }
    state_->tokens.resize(static_cast<std::size_t>(largest) + 1);
    state_->id_of.reserve(count);
    return {};
  }

  Status put(const std::string& text, std::int32_t id, bool added, const std::string& where) {
    auto& token = state_->tokens[static_cast<std::size_t>(id)];
    if (token.present) {
      return invalid(where + ": " + quoted(text) + " has the id " + std::to_string(id) +
                     ", which another token has already");
    }
    token.present = true;
    std::string bytes = text;
    bool in_alphabet = false;
    if (file_.symbols == Symbols::kByteLevel) {
      bytes = byte_level_bytes(text, in_alphabet);
    } else {
      token.byte = byte_token(text);
      if (token.byte >= 0) bytes = std::string(1, static_cast<char>(token.byte));
    }
    if (state_->bytes_of_tokens.size() + bytes.size() > kMaxTokenizerBytes) {
      return invalid("the tokens together are longer than " + std::to_string(kMaxTokenizerBytes) +
                     " bytes");
    }
    token.begin = static_cast<std::uint32_t>(state_->bytes_of_tokens.size());
    token.length = static_cast<std::uint32_t>(bytes.size());
    state_->bytes_of_tokens += bytes;
    if (!added) model_ids_.resize(std::max(model_ids_.size(), static_cast<std::size_t>(id) + 1));
    if (!added) model_ids_[static_cast<std::size_t>(id)] = in_alphabet ? 2 : 1;
    return {};
  }

  Status add_vocabulary() {
    for (const auto& [text, id] : file_.vocab) {
      if (!state_->id_of.emplace(text, id).second) {
        return invalid("model.vocab: the token " + quoted(text) + " stands twice");
      }
      ML_RETURN_IF_ERROR(put(text, id, false, "model.vocab"));
    }
    return {};
  }

  Status add_added_tokens() {
    std::vector<AddedToken> raw;
    std::vector<AddedToken> normalized;
    std::unordered_map<std::string, int> seen;
    for (std::size_t i = 0; i < file_.added.size(); ++i) {
      const std::string where = "added_tokens[" + std::to_string(i) + "]";
      AddedToken token = file_.added[i];
      const auto [it, fresh] = state_->id_of.emplace(token.content, token.id);
      if (!fresh && it->second != token.id) {
        return invalid(where + ": " + quoted(token.content) + " has the id " +
                       std::to_string(token.id) + ", and " + std::to_string(it->second) +
                       " elsewhere in the file");
      }
      if (token.normalized && file_.nfc) {
        ML_ASSIGN_OR_RETURN(token.content, normalize_nfc(token.content));
      }
      if (!seen.emplace(token.content, 0).second) {
        return invalid(where + ": " + quoted(token.content) + " stands twice");
      }
      // It is decoded as it is looked for, that is normalized.
      if (fresh) ML_RETURN_IF_ERROR(put(token.content, token.id, true, where));
      state_->tokens[static_cast<std::size_t>(token.id)].special = token.special;
      (token.normalized ? normalized : raw).push_back(token);
    }
    state_->added = file_.added;
    std::sort(state_->added.begin(), state_->added.end(),
              [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
    ML_ASSIGN_OR_RETURN(state_->raw_matcher, AddedTokenMatcher::create(raw));
    ML_ASSIGN_OR_RETURN(state_->normalized_matcher, AddedTokenMatcher::create(normalized));
    return {};
  }

  // The id of a token of the model itself, not of one that was only added.
  std::int32_t model_id(std::string_view text) const {
    const auto it = state_->id_of.find(text);
    if (it == state_->id_of.end()) return TokenizerState::kNoToken;
    const auto id = static_cast<std::size_t>(it->second);
    return id < model_ids_.size() && model_ids_[id] != 0 ? it->second : TokenizerState::kNoToken;
  }

  // Control tokens in a user's text can only stay text if no ordinary text encodes to them.
  Status check_ordinary(std::int32_t id) const {
    const auto& token = state_->tokens[static_cast<std::size_t>(id)];
    if (!token.special) return {};
    return {Code::kUnsupported, name_,
            "added_tokens: the special token " + quoted(state_->bytes(token)) +
                " is also what ordinary text is encoded to"};
  }

  Status find_symbols() {
    if (file_.unk_token.has_value()) {
      state_->unk_id = model_id(*file_.unk_token);
      if (state_->unk_id == TokenizerState::kNoToken) {
        return invalid("model.unk_token: " + quoted(*file_.unk_token) + " is not in model.vocab");
      }
    }
    const bool byte_level = file_.symbols == Symbols::kByteLevel;
    for (std::size_t b = 0; b < 256; ++b) {
      std::string symbol;
      if (byte_level) {
        utf8::append_code_point(alphabet().character[b], symbol);
      } else {
        constexpr std::string_view kHex = "0123456789ABCDEF";
        symbol = std::string("<0x") + kHex[b >> 4] + kHex[b & 15] + '>';
      }
      const std::int32_t id = model_id(symbol);
      if (id == TokenizerState::kNoToken && !(byte_level && file_.unk_token.has_value())) {
        return invalid("model.vocab: no token for the byte " + std::to_string(b) + ", " +
                       quoted(symbol));
      }
      if (id != TokenizerState::kNoToken) ML_RETURN_IF_ERROR(check_ordinary(id));
      state_->byte_ids[b] = id;
    }
    if (byte_level) return {};
    for (const auto& [text, id] : file_.vocab) {
      if (text.empty()) continue;
      const utf8::Step step = utf8::step(text, 0);
      if (step.length != text.size()) continue;
      ML_RETURN_IF_ERROR(check_ordinary(id));
      state_->character_ids.emplace(step.code_point, id);
    }
    return {};
  }

  Status add_merges() {
    state_->merges = MergeTable(file_.merges.size());
    std::string merged;
    for (std::size_t i = 0; i < file_.merges.size(); ++i) {
      const auto& [left, right] = file_.merges[i];
      const std::string where = "model.merges[" + std::to_string(i) + "]: ";
      merged = left + right;
      const std::int32_t left_id = model_id(left);
      const std::int32_t right_id = model_id(right);
      const std::int32_t id = model_id(merged);
      for (const auto& [text, text_id] :
           {std::pair<const std::string&, std::int32_t>(left, left_id),
            {right, right_id},
            {merged, id}}) {
        if (text_id == TokenizerState::kNoToken) {
          return invalid(where + quoted(text) + " is not in model.vocab");
        }
      }
      ML_RETURN_IF_ERROR(check_ordinary(id));
      if (!state_->merges.insert(left_id, right_id, static_cast<std::uint32_t>(i), id)) {
        return invalid(where + quoted(left) + " and " + quoted(right) + " stand twice");
      }
    }
    return {};
  }

  void add_whole_pieces() {
    for (const auto& [text, id] : file_.vocab) {
      const auto& token = state_->tokens[static_cast<std::size_t>(id)];
      if (token.special) continue;
      // In the byte-level alphabet, or it can't be a piece.
      const bool in_alphabet = model_ids_[static_cast<std::size_t>(id)] == 2;
      if (file_.symbols == Symbols::kByteLevel && !in_alphabet) continue;
      state_->whole_pieces.emplace(state_->bytes(token), id);
    }
  }

  const TokenizerFile& file_;
  const std::string& name_;
  std::shared_ptr<TokenizerState> state_;
  std::vector<std::uint8_t> model_ids_;  // 0 not the model's, 1 the model's, 2 and byte-level
};

}  // namespace

Result<std::shared_ptr<const TokenizerState>> build_tokenizer(const TokenizerFile& file,
                                                              const std::string& name) {
  return Builder(file, name).run();
}

}  // namespace monolayer

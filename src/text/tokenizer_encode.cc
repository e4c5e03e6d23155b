#include <utility>

#include "text/tokenizer.h"
#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace monolayer {

std::unique_ptr<EncodeScratch> ScratchPool::take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      auto scratch = std::move(idle_.back());
      idle_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<EncodeScratch>();
}

void ScratchPool::give_back(std::unique_ptr<EncodeScratch> scratch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(scratch));
}

namespace {

// Well-formed text and the spans in it that correspond to those of a broken text.
struct Repaired {
  std::string text;
  std::vector<TextSpan> literal;
};

Repaired repair(std::string_view broken, std::span<const TextSpan> literal) {
  Repaired out;
  out.text.reserve(broken.size());
  out.literal.assign(literal.begin(), literal.end());
  std::size_t begin = 0;  // next span whose begin, and whose end, is still to be moved
  std::size_t end = 0;
  for (std::size_t at = 0; at < broken.size();) {
    const utf8::Step step = utf8::step(broken, at);
    const std::size_t next = at + step.length;
    // A border inside a sequence moves to the sequence's outer side.
    while (begin < literal.size() && literal[begin].begin < next) {
      out.literal[begin++].begin = out.text.size();
    }
    out.text +=
        step.kind == utf8::Kind::kCharacter ? broken.substr(at, step.length) : utf8::kReplacement;
    while (end < literal.size() && literal[end].end <= next) {
      out.literal[end++].end = out.text.size();
    }
    at = next;
  }
  while (begin < literal.size()) out.literal[begin++].begin = out.text.size();
  while (end < literal.size()) out.literal[end++].end = out.text.size();
  return out;
}

// One call of encode().
class Encoder {
 public:
  Encoder(const TokenizerState& state, EncodeScratch& scratch, std::vector<std::int32_t>& out)
      : state_(state), scratch_(scratch), out_(out) {}

  // Text without added tokens, normalized already.
  Status ordinary(std::string_view text) {
    ML_RETURN_IF_ERROR(state_.splitter.split(text, scratch_.split));
    for (const Piece p : scratch_.split.pieces) piece(text.substr(p.begin, p.end - p.begin));
    return {};
  }

  Status with_added_tokens(std::string_view text, std::span<const TextSpan> literal) {
    std::vector<AddedTokenMatcher::Part> parts;
    ML_RETURN_IF_ERROR(
        state_.raw_matcher.split(text, {0, text.size()}, literal, scratch_.split.regex, parts));
    for (const auto& part : parts) {
      if (part.id >= 0) {
        out_.push_back(part.id);
      } else if (state_.nfc) {
        ML_ASSIGN_OR_RETURN(const std::string normal,
                            normalize_nfc(text.substr(part.begin, part.end - part.begin)));
        ML_RETURN_IF_ERROR(normalized(normal, {0, normal.size()}, {}));
      } else {
        ML_RETURN_IF_ERROR(normalized(text, {part.begin, part.end}, literal));
      }
    }
    return {};
  }

 private:
  Status normalized(std::string_view text, TextSpan range, std::span<const TextSpan> literal) {
    std::vector<AddedTokenMatcher::Part> parts;
    ML_RETURN_IF_ERROR(
        state_.normalized_matcher.split(text, range, literal, scratch_.split.regex, parts));
    for (const auto& part : parts) {
      if (part.id >= 0) {
        out_.push_back(part.id);
      } else {
        ML_RETURN_IF_ERROR(ordinary(text.substr(part.begin, part.end - part.begin)));
      }
    }
    return {};
  }

  void piece(std::string_view bytes) {
    const auto known = scratch_.cache.find(bytes);
    if (!known.empty()) {
      out_.insert(out_.end(), known.begin(), known.end());
      return;
    }
    const std::size_t before = out_.size();
    const auto whole = state_.whole_pieces.find(bytes);
    if (whole != state_.whole_pieces.end()) {
      out_.push_back(whole->second);
    } else {
      scratch_.symbols.clear();
      if (state_.symbols == TokenizerFile::Symbols::kByteLevel) {
        byte_symbols(bytes);
      } else {
        character_symbols(bytes);
      }
      scratch_.merger.merge(scratch_.symbols, state_.merges, out_);
    }
    scratch_.cache.insert(bytes, std::span<const std::int32_t>(out_).subspan(before));
  }

  void byte_symbols(std::string_view bytes) {
    bool unknown = false;
    for (const char c : bytes) {
      const std::int32_t id = state_.byte_ids[static_cast<std::uint8_t>(c)];
      // Neighbouring unknown symbols are one unknown token with fuse_unk.
      if (id == TokenizerState::kNoToken && unknown && state_.fuse_unk) continue;
      unknown = id == TokenizerState::kNoToken;
      scratch_.symbols.push_back(unknown ? state_.unk_id : id);
    }
  }

  void character_symbols(std::string_view bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      const utf8::Step step = utf8::step(bytes, at);
      const auto it = state_.character_ids.find(step.code_point);
      if (it != state_.character_ids.end()) {
        scratch_.symbols.push_back(it->second);
      } else {
        for (std::size_t i = at; i < at + step.length; ++i) {
          scratch_.symbols.push_back(state_.byte_ids[static_cast<std::uint8_t>(bytes[i])]);
        }
      }
      at += step.length;
    }
  }

  const TokenizerState& state_;
  EncodeScratch& scratch_;
  std::vector<std::int32_t>& out_;
};

Status check_literal(std::string_view text, std::span<const TextSpan> literal) {
  std::size_t last = 0;
  for (std::size_t i = 0; i < literal.size(); ++i) {
    if (literal[i].begin < last || literal[i].end < literal[i].begin ||
        literal[i].end > text.size()) {
      return {Code::kInvalidArgument, "literal[" + std::to_string(i) + "]",
              "spans must ascend, not overlap, and end within the " + std::to_string(text.size()) +
                  " bytes of the text"};
    }
    last = literal[i].end;
  }
  return {};
}

Status encode_into(const TokenizerState& state, std::string_view text, const EncodeOptions& options,
                   EncodeScratch& scratch, std::vector<std::int32_t>& out) {
  Encoder encoder(state, scratch, out);
  if (options.allow_special) return encoder.with_added_tokens(text, options.literal);
  if (!state.nfc) return encoder.ordinary(text);
  ML_ASSIGN_OR_RETURN(const std::string normal, normalize_nfc(text));
  return encoder.ordinary(normal);
}

}  // namespace

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text,
                                                    const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return Status(
        Code::kInvalidArgument, "text",
        std::to_string(text.size()) + " bytes, the limit is " + std::to_string(kMaxTextBytes));
  }
  EncodeOptions repaired_options = options;
  Repaired repaired;
  if (options.allow_special) {
    ML_RETURN_IF_ERROR(check_literal(text, options.literal));
    if (!options.literal.empty() && state_->nfc && !state_->normalized_matcher.empty()) {
      return Status(Code::kUnsupported, state_->name,
                    "literal spans with a normalizer and added tokens that are normalized");
    }
  }
  if (utf8::valid_prefix(text) != text.size()) {
    repaired = repair(text, options.allow_special ? options.literal : std::span<const TextSpan>{});
    text = repaired.text;
    repaired_options.literal = repaired.literal;
  }
  auto scratch = state_->pool.take();
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  const Status status = encode_into(*state_, text, repaired_options, *scratch, ids);
  state_->pool.give_back(std::move(scratch));
  if (!status.ok()) return status;
  return ids;
}

}  // namespace monolayer

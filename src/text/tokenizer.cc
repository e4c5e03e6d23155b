#include "text/tokenizer.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace monolayer {

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(file, error)) file /= "tokenizer.json";
  const std::string name = file.string();
  if (!std::filesystem::exists(file, error)) {
    return Status(Code::kNotFound, name, "there is no such file");
  }
  if (!std::filesystem::is_regular_file(file, error)) {
    return Status(Code::kInvalidFile, name, "not a regular file");
  }
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (error) return Status(Code::kIoError, name, error.message());
  if (size > kMaxTokenizerBytes) {
    return Status(
        Code::kInvalidFile, name,
        std::to_string(size) + " bytes, the limit is " + std::to_string(kMaxTokenizerBytes));
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return Status(Code::kIoError, name, std::strerror(errno));
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!stream.read(text.data(), static_cast<std::streamsize>(size))) {
    return Status(Code::kIoError, name, "could not read all " + std::to_string(size) + " bytes");
  }
  return parse(text, name);
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, const std::string& name) {
  ML_ASSIGN_OR_RETURN(const TokenizerFile file, parse_tokenizer_file(json, name));
  ML_ASSIGN_OR_RETURN(auto state, build_tokenizer(file, name));
  return Tokenizer(std::move(state));
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string out;
  std::string bytes;
  // A run of byte tokens is a text or, as a whole, as many U+FFFD as it has bytes.
  const auto end_run = [&] {
    if (utf8::valid_prefix(bytes) == bytes.size()) {
      out += bytes;
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i) out += utf8::kReplacement;
    }
    bytes.clear();
  };
  const bool byte_level = state_->symbols == TokenizerFile::Symbols::kByteLevel;
  for (const std::int32_t id : ids) {
    const TokenizerState::Token* token = state_->token(id);
    if (token == nullptr || (skip_special && token->special)) continue;
    if (byte_level) {
      bytes += state_->bytes(*token);
    } else if (token->byte >= 0) {
      bytes.push_back(static_cast<char>(token->byte));
    } else {
      end_run();
      out += state_->bytes(*token);
    }
  }
  if (byte_level) {
    utf8::append_lossy(bytes, out);
  } else {
    end_run();
  }
  return out;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  const TokenizerState::Token* token = state_->token(id);
  return token == nullptr ? std::string_view{} : state_->bytes(*token);
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto it = state_->id_of.find(token);
  if (it == state_->id_of.end()) return std::nullopt;
  return it->second;
}

std::int32_t Tokenizer::vocab_size() const {
  return static_cast<std::int32_t>(state_->tokens.size());
}

bool Tokenizer::is_special(std::int32_t id) const {
  const TokenizerState::Token* token = state_->token(id);
  return token != nullptr && token->special;
}

bool Tokenizer::has_id(std::int32_t id) const { return state_->token(id) != nullptr; }

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return state_->added; }

}  // namespace monolayer

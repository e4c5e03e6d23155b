#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/tokenizer_regex.h"

#include <array>
#include <cctype>

namespace monolayer {
namespace {

constexpr std::size_t kMaxPatternBytes = 64 * 1024;
constexpr std::uint32_t kMaxNesting = 100;
constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kHeapLimitKiB = 64 * 1024;
constexpr std::size_t kJitStackStart = 32 * 1024;
constexpr std::size_t kJitStackMax = 4 * 1024 * 1024;

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct RegexScratch::Impl {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  Impl() {
    // One pair of offsets: patterns hold no capturing groups after translation.
    data = pcre2_match_data_create(1, nullptr);
    context = pcre2_match_context_create(nullptr);
    stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
    if (context != nullptr) {
      pcre2_set_match_limit(context, kMatchLimit);
      pcre2_set_heap_limit(context, kHeapLimitKiB);
      if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
    }
  }
  ~Impl() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {}
RegexScratch::~RegexScratch() = default;

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  bool jit = false;
  Compiled() = default;
  ~Compiled() { pcre2_code_free(code); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
};

Result<Regex> Regex::pcre2(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return Status(Code::kInvalidFile, "pattern",
                  std::to_string(pattern.size()) + " bytes, the limit is " +
                      std::to_string(kMaxPatternBytes));
  }
  auto compiled = std::make_shared<Compiled>();
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context == nullptr) return Status(Code::kResourceExhausted, "pattern", "out of memory");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context, kMaxNesting);
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                 &error, &offset, context);
  pcre2_compile_context_free(context);
  if (compiled->code == nullptr) {
    return Status(Code::kInvalidFile, "pattern",
                  error_text(error) + " (at byte " + std::to_string(offset) + " of \"" +
                      std::string(pattern.substr(0, 200)) + "\")");
  }
  // Without a JIT (an architecture or a hardened kernel that has none) the interpreter answers the
  // same, slower.
  compiled->jit = pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(compiled));
}

Result<Regex> Regex::oniguruma(std::string_view pattern) {
  ML_ASSIGN_OR_RETURN(const std::string translated, translate_oniguruma(pattern));
  return pcre2(translated);
}

Result<Regex> Regex::literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool syntax = byte < 0x80 && !std::isalnum(byte);
    if (syntax) {
      constexpr std::string_view kHex = "0123456789ABCDEF";
      pattern += "\\x{";
      pattern += kHex[byte >> 4];
      pattern += kHex[byte & 15U];
      pattern += '}';
    } else {
      pattern += c;
    }
  }
  return pcre2(pattern);
}

Result<Regex::Match> Regex::find(std::string_view text, std::size_t start,
                                 RegexScratch& scratch) const {
  RegexScratch::Impl& s = *scratch.impl_;
  if (s.data == nullptr || s.context == nullptr) {
    return Status(Code::kResourceExhausted, "pattern", "out of memory");
  }
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code_->jit) {
    rc = pcre2_jit_match(code_->code, subject, text.size(), start, 0, s.data, s.context);
  }
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(code_->code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                     s.data, s.context);
  }
  if (rc == PCRE2_ERROR_NOMATCH) return Match{};
  if (rc < 0) {
    return Status(
        Code::kResourceExhausted, "pattern",
        "matching stopped at byte " + std::to_string(start) + " of the text: " + error_text(rc));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(s.data);
  return Match{true, offsets[0], offsets[1]};
}

}  // namespace monolayer

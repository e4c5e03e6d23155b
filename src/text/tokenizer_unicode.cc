#include "text/tokenizer_unicode.h"

namespace monolayer {
namespace {

constexpr NewCharacters kNewCharacters[] = {
// clang-format off
#include "text/tokenizer_unicode.inc"
    // clang-format on
};

}  // namespace

std::span<const NewCharacters> new_characters() { return kNewCharacters; }

}  // namespace monolayer

// Unicode 16, which tokenizer files are written for, over libraries that may know only Unicode 14.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace monolayer {

// Code points whose general category in Unicode 16 is not that of Unicode 14: all but one
// (U+1171E, Mn before and Mc now) were unassigned.
struct NewCharacters {
  char32_t first;
  char32_t last;
  std::string_view category;  // two letters
};
std::span<const NewCharacters> new_characters();

}  // namespace monolayer

// One random call of one tile function through two variants: their bits must agree.
#pragma once

#include <string>

#include "tiles_cases.h"

namespace monolayer::cpu::test {

// Describes the first difference; empty if there is none. Shapes, strides, offsets, formats and
// contents all come from `random`.
std::string compare_random_call(Random& random, const Tiles& a, const Tiles& b);

}  // namespace monolayer::cpu::test

// Where the variants meet: one table per instruction set, each defined in its own unit.
#pragma once

#include "backend/cpu/tiles.h"

namespace monolayer::cpu {

// The specification in code; runs everywhere.
extern const Tiles kScalarTiles;

#if defined(__x86_64__)
extern const Tiles kAvx2Tiles;
extern const Tiles kAvx512Tiles;
#elif defined(__aarch64__)
extern const Tiles kNeonTiles;
#endif

}  // namespace monolayer::cpu

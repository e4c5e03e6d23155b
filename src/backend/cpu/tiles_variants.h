// Where the variants meet: one table per instruction set, each defined in its own file.
#pragma once

#include "backend/cpu/tiles.h"

namespace monolayer::cpu {

// The specification in code; runs everywhere.
extern const Tiles kScalarTiles;

}  // namespace monolayer::cpu

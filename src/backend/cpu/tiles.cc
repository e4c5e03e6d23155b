#include "backend/cpu/tiles.h"

#include "backend/cpu/tiles_variants.h"

namespace monolayer::cpu {

std::span<const Tiles* const> available_tiles() {
  static constexpr const Tiles* kAvailable[] = {&kScalarTiles};
  return kAvailable;
}

const Tiles* find_tiles(std::string_view name) {
  for (const Tiles* tiles : available_tiles()) {
    if (name.empty() || tiles->name == name) return tiles;
  }
  return nullptr;
}

}  // namespace monolayer::cpu

#include "backend/cpu/tiles.h"

#include <array>

#include "backend/cpu/tiles_variants.h"

namespace monolayer::cpu {
namespace {

struct Available {
  std::array<const Tiles*, 3> tiles{};
  std::size_t count = 0;

  Available() {
#if defined(__x86_64__)
    // These also ask whether the operating system saves the wide registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi2");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (avx2 && avx512) tiles[count++] = &kAvx512Tiles;
    if (avx2) tiles[count++] = &kAvx2Tiles;
#elif defined(__aarch64__)
    tiles[count++] = &kNeonTiles;
#endif
    tiles[count++] = &kScalarTiles;
  }
};

}  // namespace

std::span<const Tiles* const> available_tiles() {
  static const Available available;
  return {available.tiles.data(), available.count};
}

const Tiles* find_tiles(std::string_view name) {
  for (const Tiles* tiles : available_tiles()) {
    if (name.empty() || tiles->name == name) return tiles;
  }
  return nullptr;
}

}  // namespace monolayer::cpu

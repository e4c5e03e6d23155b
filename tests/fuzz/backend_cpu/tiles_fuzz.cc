// Differential: every variant of the tile functions this machine can run returns the scalar
// variant's bits, whatever shapes and contents the input spells.
#include <cstdio>
#include <cstdlib>

#include "backend_cpu/tiles_differential.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace monolayer::cpu;
  const Tiles& scalar = *find_tiles("scalar");
  for (const Tiles* tiles : available_tiles()) {
    if (tiles == &scalar) continue;
    test::Random random(data, size);
    const std::string found = test::compare_random_call(random, *tiles, scalar);
    if (!found.empty()) {
      std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(tiles->name.size()), tiles->name.data(),
                   found.c_str());
      std::abort();
    }
  }
  return 0;
}

// A self-contained differential test for machines with other instruction sets:
//   tiles_differential [seconds] [seed]
// compares every variant this machine can run with the scalar one, bit for bit. Exit code 1 after
// a difference, 3 if there is nothing to compare.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tiles_differential.h"

int main(int argc, char** argv) {
  using namespace monolayer::cpu;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const auto seed = static_cast<std::uint64_t>(argc > 2 ? std::atoll(argv[2]) : 1);
  const Tiles& scalar = *find_tiles("scalar");
  int exit_code = available_tiles().size() > 1 ? 0 : 3;
  for (const Tiles* tiles : available_tiles()) {
    if (tiles == &scalar) continue;
    test::Random random(seed);
    std::string found;
    long calls = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (found.empty() && std::chrono::steady_clock::now() < end) {
      found = test::compare_random_call(random, *tiles, scalar);
      ++calls;
    }
    std::printf("%.*s: %ld calls, %s\n", static_cast<int>(tiles->name.size()), tiles->name.data(),
                calls, found.empty() ? "all bits equal" : found.c_str());
    if (!found.empty()) exit_code = 1;
  }
  return exit_code;
}

#include "mono/block_table.h"

#include "core/prefetch.h"

namespace monolayer::mono {
namespace {

// The sign bit of id or of bound - 1 - id says "outside".
std::uint32_t outside(std::uint32_t id, std::uint32_t bound) { return id | (bound - 1 - id); }

constexpr std::int64_t kAtOnce = 16;

}  // namespace

// A loop of or's over a fixed number of entries is vectorised without a word of code around it.
ML_STEP_CODE bool blocks_within(const std::int32_t* table, std::int64_t entries,
                                std::int64_t blocks) {
  const auto bound = static_cast<std::uint32_t>(blocks);
  std::uint32_t found = 0;
  for (; entries >= kAtOnce; entries -= kAtOnce, table += kAtOnce) {
    for (std::int64_t i = 0; i < kAtOnce; ++i) {
      found |= outside(static_cast<std::uint32_t>(table[i]), bound);
    }
  }
  while (entries-- > 0) found |= outside(static_cast<std::uint32_t>(*table++), bound);
  return found >> 31 == 0;
}

}  // namespace monolayer::mono

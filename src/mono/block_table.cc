#include "mono/block_table.h"

#include "core/prefetch.h"

namespace monolayer::mono {
namespace {

// The sign bit of id or of bound - 1 - id says "outside".
std::uint32_t outside(std::uint32_t id, std::uint32_t bound) { return id | (bound - 1 - id); }

constexpr std::int64_t kAtOnce = 16;

}  // namespace

// A loop of or's over a fixed number of entries is vectorised without a word of code around it;
// across two lines of code it takes half as long again.
ML_STEP_CODE __attribute__((aligned(kCacheLine))) bool blocks_within(const std::int32_t* table,
                                                                     std::int64_t entries,
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

// memcmp() lies in another library, whose pages and lines no step is sure to find in a cache.
ML_STEP_CODE bool same_pointers(const void* const* a, const void* const* b, std::size_t count) {
  constexpr std::size_t kPointers = 8;
  std::uintptr_t moved = 0;
  for (; count >= kPointers; count -= kPointers, a += kPointers, b += kPointers) {
    for (std::size_t i = 0; i < kPointers; ++i) {
      moved |= reinterpret_cast<std::uintptr_t>(a[i]) ^ reinterpret_cast<std::uintptr_t>(b[i]);
    }
  }
  while (count-- > 0) {
    moved |= reinterpret_cast<std::uintptr_t>(*a++) ^ reinterpret_cast<std::uintptr_t>(*b++);
  }
  return moved == 0;
}

}  // namespace monolayer::mono

// The likeliest token of a row as one number, so that parts of a vocabulary are compared in any
// order by whoever holds them: threads, blocks of a device, ranks.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace monolayer::cpu {

// Larger logits are larger keys and, among equals (either zero equals the other), lower ids.
// Logits that are no numbers are larger than all others. 0 is no token's key.
inline std::uint64_t likeliest_key(float logit, std::int64_t id) {
  auto bits = std::bit_cast<std::uint32_t>(logit == 0 ? 0.0F : logit);
  if ((bits & 0x7F800000U) == 0x7F800000U) {
    bits = ~0U;
  } else {
    bits = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  }
  return std::uint64_t{bits} << 32 | (~static_cast<std::uint64_t>(id) & 0xFFFFFFFFU);
}
inline bool likeliest_is_finite(std::uint64_t key) { return key >> 32 != ~0U; }
inline std::int32_t likeliest_id(std::uint64_t key) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(key));
}

// The same for ids that count from `first` on in the whole vocabulary.
inline std::uint64_t likeliest_moved(std::uint64_t key, std::int64_t first) {
  const std::uint64_t id = (~key & 0xFFFFFFFFU) + static_cast<std::uint64_t>(first);
  return (key & ~std::uint64_t{0xFFFFFFFFU}) | (~id & 0xFFFFFFFFU);
}

// The largest key of tokens `first`, first + 1, …; 0 for none.
inline std::uint64_t likeliest_of(std::span<const float> logits, std::int64_t first) {
  std::uint64_t best = 0;
  for (const float logit : logits) best = std::max(best, likeliest_key(logit, first++));
  return best;
}

}  // namespace monolayer::cpu

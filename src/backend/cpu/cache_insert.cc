#include "backend/cpu/cache_insert.h"

#include <cstring>

namespace monolayer::cpu {

void store_entry(DType dtype, float scale, const float* values, std::int64_t n, std::byte* entry) {
  if (dtype == DType::kE4M3) {
    for (std::int64_t i = 0; i < n; ++i) {
      entry[i] = static_cast<std::byte>(f32_to_e4m3(values[i] / scale));
    }
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const bf16_t bits = f32_to_bf16(values[i]);
    std::memcpy(entry + i * 2, &bits, sizeof bits);
  }
}

}  // namespace monolayer::cpu

// Writing one head's values into a cache entry.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace monolayer::cpu {

// `values` are BF16 values; kE4M3 stores value / scale rounded to nearest even and saturated.
void store_entry(DType dtype, float scale, const float* values, std::int64_t n, std::byte* entry);

}  // namespace monolayer::cpu

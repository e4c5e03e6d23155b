// The fused multiply-add over a row, for sums that several tiles share.
#pragma once

#include <cstdint>

namespace monolayer::cpu {

// acc[i] = fma(w, x[i], acc[i]), in hardware where there is any; the bits are the same everywhere.
void accumulate(float w, const float* x, std::int64_t n, float* acc);

}  // namespace monolayer::cpu

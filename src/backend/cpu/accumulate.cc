#include "backend/cpu/accumulate.h"

#include <cmath>

namespace monolayer::cpu {
namespace {

void accumulate_portable(float w, const float* x, std::int64_t n, float* acc) {
  for (std::int64_t i = 0; i < n; ++i) acc[i] = std::fma(w, x[i], acc[i]);
}

#if defined(__x86_64__)
// The compiler only vectorises a fused multiply-add where it may assume the instruction; without
// that it calls the library once per value.
__attribute__((target("avx2,fma"))) void accumulate_avx2(float w, const float* x, std::int64_t n,
                                                         float* acc) {
  for (std::int64_t i = 0; i < n; ++i) acc[i] = __builtin_fmaf(w, x[i], acc[i]);
}

const auto kAccumulate = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
                             ? accumulate_avx2
                             : accumulate_portable;
#else
constexpr auto kAccumulate = accumulate_portable;
#endif

}  // namespace

void accumulate(float w, const float* x, std::int64_t n, float* acc) { kAccumulate(w, x, n, acc); }

}  // namespace monolayer::cpu

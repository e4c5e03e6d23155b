// Memory asked for before it is read. A decode step reads far more than the caches hold, so neither
// the code nor the data that admits the next step is in them; asked for all at once, a hundred
// lines come in little more time than one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// The linker names where a section begins and ends if its name is a C identifier.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier)
#define ML_HIDDEN __attribute__((weak, visibility("hidden"))) extern
ML_HIDDEN const char __start_monolayer_step[], __stop_monolayer_step[];
ML_HIDDEN const char __start_monolayer_layer[], __stop_monolayer_layer[];
#undef ML_HIDDEN
// NOLINTEND(bugprone-reserved-identifier)
}

namespace monolayer {

inline constexpr std::size_t kCacheLine = 64;

__attribute__((always_inline)) inline void ask_for(const void* at, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(at) / kCacheLine * kCacheLine;
  const auto end = reinterpret_cast<std::uintptr_t>(at) + bytes;
  for (std::uintptr_t line = begin; line < end; line += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(line));
  }
}

// So many lines from that of `at` on, without a loop. Any address will do.
template <std::size_t kLines>
__attribute__((always_inline)) inline void ask_for_lines(const void* at) {
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kLines; ++i) {
    __builtin_prefetch(reinterpret_cast<const void*>(begin + i * kCacheLine));
  }
}

// The list of an object's virtual functions: its first word names it.
inline const void* virtuals_of(const void* object) {
  const void* list = nullptr;
  std::memcpy(&list, object, sizeof list);
  return list;
}

// Before a function that every step runs between its arrival and its first layer: such functions
// lie together in the program, and nothing else does there.
#define ML_STEP_CODE __attribute__((section("monolayer_step")))
// And of a layer's call.
#define ML_LAYER_CODE __attribute__((section("monolayer_layer")))
// Before what such a function calls to refuse a step, and to say why: it lies elsewhere.
#define ML_REFUSAL_CODE __attribute__((cold, noinline))

// Asks for all of them.
__attribute__((always_inline)) inline void ask_for_step_code() {
  ask_for(__start_monolayer_step,
          static_cast<std::size_t>(__stop_monolayer_step - __start_monolayer_step));
}
__attribute__((always_inline)) inline void ask_for_layer_code() {
  ask_for(__start_monolayer_layer,
          static_cast<std::size_t>(__stop_monolayer_layer - __start_monolayer_layer));
}

}  // namespace monolayer

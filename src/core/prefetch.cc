#include "core/prefetch.h"

#include <algorithm>

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
namespace {

// More than the functions have; a build with sanitizers would ask for a hundred kilobytes.
constexpr std::size_t kMostBytes = 12 << 10;

void ask_for_code(const char* begin, const char* end) {
  ask_for(begin, std::min(static_cast<std::size_t>(end - begin), kMostBytes));
}

}  // namespace

ML_STEP_CODE void ask_for_step_code() {
  ask_for_code(__start_monolayer_step, __stop_monolayer_step);
}

ML_LAYER_CODE void ask_for_layer_code() {
  ask_for_code(__start_monolayer_layer, __stop_monolayer_layer);
}

}  // namespace monolayer

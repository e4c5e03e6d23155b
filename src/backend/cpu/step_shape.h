// A planned step as whoever decides its path sees it.
#pragma once

#include <cstdint>

#include "backend/cpu/native.h"
#include "backend/cpu/step_plan.h"

namespace monolayer::cpu {

// `max_context`: tokens that a sequence may have.
StepShape shape_of(const StepPlan& plan, std::int64_t max_context);
inline std::int64_t slot_number(const CacheSlot& slot) {
  return slot.page * m3::kPageTokens + slot.token;
}

}  // namespace monolayer::cpu

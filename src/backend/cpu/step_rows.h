// A mono step's rows, checked and numbered as the stages take them.
#pragma once

#include <span>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cpu/step_plan.h"
#include "core/status.h"
#include "m3/config.h"
#include "mono/executor.h"

namespace monolayer::cpu {

// Live rows only, in their order; `live[i]` is the caller's row behind row i of `plan`.
// kInvalidArgument naming the row, the value and the bound; `plan` and `live` are unchanged then.
Status plan_rows(std::span<const mono::StepRow> rows, const m3::ModelConfig& config,
                 const Caches& caches, std::int64_t max_context, StepPlan& plan,
                 std::vector<std::int64_t>& live);

}  // namespace monolayer::cpu

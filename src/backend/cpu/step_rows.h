// A mono step's rows, checked and numbered as the stages take them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "backend/cpu/cache.h"
#include "backend/cpu/step_plan.h"
#include "core/status.h"
#include "m3/config.h"
#include "mono/executor.h"

namespace monolayer::cpu {

// What a row may name: the least of all layers.
struct RowBounds {
  std::int64_t blocks = 0, index_blocks = 0;  // capacities
  std::int64_t positions = 0;
  bool sparse = false;  // some layer has an index cache
};
RowBounds row_bounds(const m3::ModelConfig& config, const Caches& caches, std::int64_t max_context);

using LiveRows = std::array<std::int64_t, mono::kMaxRows>;

// Live rows only, in their order; `live[i]` is the caller's row behind row i of `plan`.
// kInvalidArgument naming the row, the value and the bound; `plan` and `live` are unchanged then.
// Takes no memory unless it refuses, where `plan` has room for kMaxRows rows and sequences.
Status plan_rows(std::span<const mono::StepRow> rows, const RowBounds& bounds, StepPlan& plan,
                 LiveRows& live);
// The same for rows that were checked: takes no memory where there is room.
void take_rows(std::span<const mono::StepRow> rows, bool sparse, StepPlan& plan, LiveRows& live);

}  // namespace monolayer::cpu

#include "backend/cpu/step_shape.h"

#include <algorithm>

#include "core/prefetch.h"

namespace monolayer::cpu {

ML_STEP_CODE StepShape shape_of(const StepPlan& plan, std::int64_t max_context) {
  StepShape shape;
  shape.rows = shape.shortest_query = plan.rows();
  shape.requests = static_cast<std::int64_t>(plan.sequences().size());
  shape.max_context = max_context;
  for (const PlannedSequence& sequence : plan.sequences()) {
    shape.shortest_query = std::min(shape.shortest_query, sequence.rows);
    shape.longest_query = std::max(shape.longest_query, sequence.rows);
    shape.longest_context = std::max(shape.longest_context, sequence.start + sequence.rows);
    shape.table_width =
        std::max(shape.table_width, static_cast<std::int64_t>(sequence.pages.size()));
  }
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const PlannedRow& row = plan.row(r);
    shape.highest_slot =
        std::max({shape.highest_slot, slot_number(row.main), slot_number(row.index)});
    shape.key_groups += row.position / 16 + 1;
  }
  return shape;
}

}  // namespace monolayer::cpu

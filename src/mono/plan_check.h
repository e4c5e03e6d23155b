// The contract every plan must keep, checked without running it.
#pragma once

#include <vector>

#include "core/status.h"
#include "mono/plan.h"

namespace monolayer::mono {

// Checks the layers of a run in their order (pass a plan several times for equal layers):
//   - every unit of a step is done by exactly one task; of a repeated step by at least one;
//   - a region has one writing stage in a layer (the stream and the normed rows have their two or
//     three), whose tasks write disjoint units, all of them inside the region;
//   - every unit a task reads was written before, and the reader has waited for its writer,
//   directly
//     or through others;
//   - nothing is overwritten while an earlier reader may still read it, across layers too;
//   - waits point to earlier steps, so that workers cannot wait in a circle;
//   - regions are aligned, disjoint, inside the memory, and hold what the step needs.
// kInternal naming layer, stage, task, region and units of the first breach.
Status check_plans(const std::vector<const LayerPlan*>& layers);

}  // namespace monolayer::mono

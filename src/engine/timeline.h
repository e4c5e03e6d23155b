// A picture of a fused run: stages over workers.
#pragma once

#include <string>
#include <vector>

#include "backend/cpu/mono_executor.h"

namespace monolayer::engine {

// SVG of the last `layers` layers recorded: a line per worker, a box per task in its stage's
// colour, waits in grey, a legend with each stage's share of the workers' time.
std::string timeline_svg(const std::vector<cpu::TaskTime>& times, int workers, int layers);

}  // namespace monolayer::engine

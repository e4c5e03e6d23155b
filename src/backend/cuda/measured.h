// Where the fused kernel was measured to be faster than the native chain, as data for whoever
// chooses the path of a step (docs/performance.md has the figures).
#pragma once

#include <span>

#include "backend/cpu/cache.h"
#include "backend/cpu/native.h"
#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer::cuda {

// Of the kernels that this model's sparse layers would run on, divided among `ranks`; by ascending
// rows. Steps of more rows than the last entry's are faster native.
std::span<const cpu::FusedSpan> fused_spans(const m3::ModelConfig& config,
                                            const m3::ModelWeights& weights,
                                            const cpu::CacheOptions& caches, int ranks);

}  // namespace monolayer::cuda

// A checkpoint's weights as the library takes them: one rank's share of the sparse
// mixture-of-experts layers, as views into the mapped files.
#pragma once

#include "core/status.h"
#include "m3/config.h"
#include "m3/weights.h"
#include "mono/library_spec.h"

namespace monolayer::mono {

// Model, layers and context of rank `rank` of `size` on the CPU, for every layer with sparse
// attention and experts; caches are left for the caller. `context.group` stays null. kUnsupported
// if the ranks do not divide the model, or there is no such layer, or a tensor type has no place in
// the interface.
Result<LibraryInput> bind_library(const m3::ModelConfig& config, const m3::ModelWeights& weights,
                                  std::int64_t rank, std::int64_t size);

}  // namespace monolayer::mono

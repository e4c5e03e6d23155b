// The EAGLE3 draft on a CUDA device, behind the same interface as the CPU's.
#pragma once

#include <memory>

#include "backend/cpu/draft.h"
#include "core/status.h"
#include "m3/draft.h"
#include "m3/weights.h"

namespace monolayer::cuda {

struct DraftOptions {
  int device = 0;
  bool keep_logits = false;  // tests: logits() has them; otherwise it is empty
};

// Uploads the matrices; the embedding stays where it is, `weights` and `target` are borrowed for
// it. kUnsupported naming the field: widths that are no multiples of 8, heads above 256. The caches
// live on the device; the pool passed to step() only says their shape and must stay the same one.
// Rows of any number run in groups of 16, a row's bits depend on nothing but its own sequence.
// Traffic is not counted.
Result<std::unique_ptr<cpu::Draft>> create_draft(const m3::DraftConfig& config,
                                                 const m3::DraftWeights& weights,
                                                 const m3::ModelConfig& target_config,
                                                 const m3::ModelWeights& target,
                                                 const DraftOptions& options);

}  // namespace monolayer::cuda

// Where a planned tensor's values are in a bound model. Internal to quantize.
#pragma once

#include "m3/synth_plan.h"
#include "m3/weights.h"

namespace monolayer::m3 {

// The matrix of a role; vectors come as one plain row. Empty if the model has none.
QuantizedMatrix source_of(const ModelWeights& weights, const PlannedTensor& tensor);

// Fills the parts of `wanted` that are empty with the formats stored now. kUnsupported naming the
// part when its matrices are stored in several.
Result<PartFormats> keep_stored_formats(const ModelWeights& weights, PartFormats wanted);

}  // namespace monolayer::m3

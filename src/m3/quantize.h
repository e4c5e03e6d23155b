// Conversion of a checkpoint between storage formats, under the published names.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantize.h"
#include "core/status.h"
#include "m3/synth.h"
#include "m3/synth_plan.h"
#include "m3/weights.h"

namespace monolayer::m3 {

struct QuantizeOptions {
  std::string format;  // see parse_formats(); parts it does not name keep their stored format
  std::string out;     // folder, made if missing
  MxRule rule = MxRule::kOcp;
  bool force = false;
  std::uint64_t max_shard_bytes = 5'000'000'000;
  WriteProgress progress;
};

// Writes `weights` (bound from `checkpoint`) to a new folder: matrices in the wanted formats, each
// rounded once from its exactly decoded values (already in the wanted format: byte for byte),
// everything else as stored, ignored tensors (vision) too; config.json with the new
// quantization_config; tokenizer and template files. Names are the hub's, one tensor per expert
// and projection. Errors: as synthesize(); kUnsupported when a part that is kept is stored in
// several formats; kInvalidArgument when the output is the input's folder.
Result<WriteReport> quantize_checkpoint(const Checkpoint& checkpoint, const ModelConfig& config,
                                        const ModelWeights& weights,
                                        const QuantizeOptions& options);

}  // namespace monolayer::m3

// Random drafts for any target, in the published names.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"
#include "m3/config.h"
#include "m3/synth.h"

namespace monolayer::m3 {

struct DraftSynthOptions {
  std::string out = {};  // folder, made if missing
  std::uint64_t seed = 0;
  bool force = false;
  // 0: the target's. As many KV heads as heads make the multi-head form.
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, width = 0;
};

// Writes config.json and model.safetensors. kInvalidArgument for heads that do not divide; errors
// of prepare_folder().
Result<WriteReport> synthesize_draft(const ModelConfig& target, const DraftSynthOptions& options);

}  // namespace monolayer::m3

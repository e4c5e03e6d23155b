// From a model's name to its parts: checkpoint, config and bound weights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"
#include "core/status.h"
#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer::engine {

// A model whose headers and config were read; no weight has been touched. Not copied or moved
// while anything borrows from it.
struct OpenModel {
  std::string folder;
  Checkpoint checkpoint;
  m3::ModelConfig config;
};

// Of a folder, or of a name in the Hugging Face cache. Memory: headers only.
struct OpenCheckpoint {
  std::string folder;
  Checkpoint checkpoint;
};
Result<OpenCheckpoint> open_checkpoint(const std::string& name);

// `model`: as above.
Result<std::unique_ptr<OpenModel>> open_model(const std::string& model);

// Binds every tensor and reads the files once, with progress. The result borrows from `model`.
Result<m3::ModelWeights> load_weights(const OpenModel& model,
                                      const ReadProgressCallback& progress = {});

// What generation_config.json says, where it does.
struct GenerationDefaults {
  double temperature = 1, top_p = 1;
  std::int64_t top_k = 0;
  std::vector<std::int32_t> eos_token_ids;
};
// Absent file: the values above and `config`'s stop ids. kInvalidFile naming the field.
Result<GenerationDefaults> generation_defaults(const std::string& folder,
                                               const m3::ModelConfig& config);

}  // namespace monolayer::engine

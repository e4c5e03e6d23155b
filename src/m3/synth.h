// Random checkpoints of any shape, full width, straight to disk.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "core/status.h"

namespace monolayer::m3 {

using WriteProgress = std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)>;

struct SynthOptions {
  nlohmann::json config;    // a config.json; its quantization_config is replaced
  std::string config_name;  // for messages
  std::int64_t layers = 0;  // 0: as configured; else the layer pattern is cut or its end repeated
  std::string format = "bf16";  // see parse_formats(); parts it does not name are BF16
  std::string out;              // folder, made if missing
  std::uint64_t seed = 0;
  bool force = false;  // replace the model files of a folder that is not empty
  std::uint64_t max_shard_bytes = 5'000'000'000;
  std::string text_from;  // folder whose tokenizer and template are copied; may be empty
  WriteProgress progress;
};

struct WriteReport {
  std::uint64_t tensors = 0, tensor_bytes = 0;
  std::size_t shards = 0;
};

// Writes config.json and the tensors. A tensor's bytes depend on seed, its name and its shape only.
// Values have the spread that keeps hidden states of order one through any number of layers; the
// scales of neighbouring groups and rows always differ. kInvalidArgument for a folder that is not
// empty (without `force`), a bad format or layer count; kResourceExhausted before anything is
// written when the disk cannot hold it.
Result<WriteReport> synthesize(const SynthOptions& options);

// The published values of MiniMax-M3 (60 layers, 428 billion parameters).
nlohmann::json m3_shape();

// Makes `folder` ready to receive a model of `bytes`: created if missing, refused if not empty
// unless `force`, which removes config.json, the index and model*.safetensors in it. A disk too
// small for it is refused (kResourceExhausted, both numbers) before anything is made or removed.
Status prepare_folder(const std::string& folder, std::uint64_t bytes, bool force);

}  // namespace monolayer::m3

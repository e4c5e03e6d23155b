// A model folder: config.json and the safetensors files that hold its tensors.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor.h"
#include "core/status.h"

namespace monolayer {

// A model held in memory instead of a folder; the bytes must outlive the checkpoint.
struct MemoryFile {
  std::string name;  // as it would be in the folder: "model.safetensors"
  std::span<const std::byte> bytes;
};

class Checkpoint {
 public:
  // Opens <folder>/config.json and either <folder>/model.safetensors or the shards that
  // <folder>/model.safetensors.index.json names. The index is authoritative: every tensor it names
  // is in the shard it names, every tensor of a shard is in the index. Refused (kInvalidFile):
  // a missing shard, a shard name that is not a plain file name, a shard-like file
  // (model-00001-of-00002.safetensors) or model.safetensors that the index does not name.
  // Other *.safetensors files in the folder are not part of the model and stay unopened.
  static Result<Checkpoint> open(const std::string& folder, const MapOptions& options = {});
  // The same from memory; `name` stands for the folder in messages.
  static Result<Checkpoint> from_memory(const std::string& name, std::span<const MemoryFile> files);

  // Name of the folder, as given.
  const std::string& path() const;
  // Views stay valid while the checkpoint lives, also after it is moved.
  const TensorView* find(std::string_view name) const;  // nullptr if there is none
  // kNotFound naming the checkpoint and the tensor.
  Result<TensorView> require(std::string_view name) const;
  const std::vector<TensorView>& tensors() const;  // sorted by name

  const std::string& config_text() const;
  const nlohmann::json& config() const;    // always an object
  const std::string& config_name() const;  // path of config.json, for messages

  const std::vector<SafetensorsFile>& files() const;
  std::size_t tensor_bytes() const;               // of all tensors
  std::size_t file_bytes() const;                 // of all safetensors files
  const std::vector<std::string>& notes() const;  // harmless oddities, one line each

  // kIoError naming the first file that changed since it was opened. One fstat a file.
  Status verify_unchanged() const;
  // Reads every page of every file, with progress over all of them.
  Status touch_all(const ReadProgressCallback& progress = {}) const;

 private:
  struct State;
  struct Delete {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Delete> state_;
};

}  // namespace monolayer

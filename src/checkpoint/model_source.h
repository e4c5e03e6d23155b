// Where the files of a model come from: a folder, or memory. Internal to this room.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "core/status.h"

namespace monolayer {

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  virtual std::string name_of(const std::string& file) const = 0;  // for messages
  virtual bool has(const std::string& file) const = 0;
  virtual Result<std::string> text(const std::string& file, std::size_t max_bytes) const = 0;
  virtual Result<SafetensorsFile> tensors(const std::string& file) const = 0;
  virtual Result<std::vector<std::string>> list() const = 0;  // file names, sorted
};

std::unique_ptr<ModelSource> folder_source(const std::string& folder, const MapOptions& options);
// Borrows `files`.
std::unique_ptr<ModelSource> memory_source(const std::string& name,
                                           std::span<const MemoryFile> files);

}  // namespace monolayer

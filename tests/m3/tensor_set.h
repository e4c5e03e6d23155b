// A checkpoint's tensors by name, to be renamed, stacked and packed by tests and written out again.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/temp_files.h"

namespace monolayer::m3 {

struct StoredTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

// Rows of `parts` one after the other; with `new_axis` the parts become entries of a first axis.
inline StoredTensor concatenate(const std::vector<StoredTensor>& parts, bool new_axis) {
  StoredTensor result = parts.front();
  result.bytes.clear();
  std::int64_t first = 0;
  for (const StoredTensor& part : parts) {
    result.bytes += part.bytes;
    first += part.shape[0];
  }
  if (new_axis) {
    result.shape.insert(result.shape.begin(), static_cast<std::int64_t>(parts.size()));
  } else {
    result.shape[0] = first;
  }
  return result;
}

struct TensorSet {
  nlohmann::json config;
  std::map<std::string, StoredTensor> tensors;

  static TensorSet of(const Checkpoint& checkpoint) {
    TensorSet set;
    set.config = checkpoint.config();
    for (const TensorView& tensor : checkpoint.tensors()) {
      set.tensors[std::string(tensor.name)] = {
          std::string(dtype_name(tensor.dtype)),
          {tensor.shape.begin(), tensor.shape.end()},
          {reinterpret_cast<const char*>(tensor.data), tensor.bytes}};
    }
    return set;
  }

  bool has(const std::string& name) const { return tensors.count(name) != 0; }
  StoredTensor take(const std::string& name) {
    StoredTensor tensor = std::move(tensors.at(name));
    tensors.erase(name);
    return tensor;
  }
  void rename(const std::string& from, const std::string& to) { tensors[to] = take(from); }
  // Replaces every occurrence of `from` in names.
  void rename_all(const std::string& from, const std::string& to) {
    std::map<std::string, StoredTensor> renamed;
    for (auto& [name, tensor] : tensors) {
      std::string changed = name;
      if (const auto at = changed.find(from); at != std::string::npos)
        changed.replace(at, from.size(), to);
      renamed[changed] = std::move(tensor);
    }
    tensors = std::move(renamed);
  }
  // The module's weight, and its scale if it has one, of several modules as one.
  void merge(const std::vector<std::string>& modules, const std::string& to, bool new_axis,
             const std::string& weight_suffix = ".weight",
             const std::string& scale_suffix = ".weight_scale") {
    std::vector<StoredTensor> weights, scales;
    for (const std::string& module : modules) {
      weights.push_back(take(module + ".weight"));
      if (has(module + ".weight_scale")) scales.push_back(take(module + ".weight_scale"));
    }
    tensors[to + weight_suffix] = concatenate(weights, new_axis);
    if (!scales.empty()) tensors[to + scale_suffix] = concatenate(scales, new_axis);
  }

  void write(const std::string& folder) const {
    std::vector<testing_files::Piece> pieces;
    for (const auto& [name, tensor] : tensors) {
      pieces.push_back({name, tensor.dtype, nlohmann::json(tensor.shape).dump(), tensor.bytes});
    }
    testing_files::write_file(folder + "/model.safetensors", testing_files::safetensors(pieces));
    testing_files::write_file(folder + "/config.json", config.dump());
  }
};

}  // namespace monolayer::m3

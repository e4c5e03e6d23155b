// One safetensors file: its tensors as views into the mapped file.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "checkpoint/tensor.h"
#include "core/status.h"

namespace monolayer {

class SafetensorsFile {
 public:
  // Maps and checks the file (rules in safetensors_header.h). Tensor data is not read, except for
  // tensors whose bytes do not start at a multiple of their element size (a header written without
  // padding): those are copied once, and copied_bytes() counts them.
  static Result<SafetensorsFile> open(const std::string& path, const MapOptions& options = {});
  // The same for bytes already in memory, which must outlive the result; `name` is for messages.
  static Result<SafetensorsFile> from_memory(const std::string& name,
                                             std::span<const std::byte> bytes);

  // Sorted by name.
  const std::vector<TensorView>& tensors() const;
  const TensorView* find(std::string_view name) const;  // nullptr if there is none
  const std::map<std::string, std::string>& metadata() const;
  const std::string& path() const;
  std::size_t file_bytes() const;
  std::size_t copied_bytes() const;

  const MappedFile& mapping() const;  // of no bytes for from_memory()
  Status verify_unchanged() const { return mapping().verify_unchanged(); }

 private:
  struct State;
  struct Delete {
    void operator()(State* state) const;
  };
  Status read(std::span<const std::byte> bytes);
  std::unique_ptr<State, Delete> state_;  // views point into it: moving the file keeps them valid
};

}  // namespace monolayer

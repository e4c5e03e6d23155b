// Writing safetensors files that appear complete or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor.h"
#include "core/status.h"

namespace monolayer {

struct TensorPlan {
  std::string name;
  DType dtype = DType::kF32;  // kE2M1x2 is written as U8
  Shape shape;                // of stored units
};

// One file. All tensors are announced first; their data then comes in any order and in pieces. The
// bytes go to a temporary name beside the target; finish() renames it. A writer destroyed before
// that removes the temporary file. The header is padded so that every tensor is aligned.
class SafetensorsWriter {
 public:
  // Reserves the disk space. kInvalidArgument for duplicate or reserved names and shapes that
  // overflow; kResourceExhausted when the disk is too small (both numbers).
  static Result<SafetensorsWriter> create(const std::string& path,
                                          const std::vector<TensorPlan>& tensors,
                                          const std::map<std::string, std::string>& metadata = {});

  // The next bytes of a tensor. kInvalidArgument for an unknown name or more bytes than announced;
  // kResourceExhausted when the disk is full.
  Status write(std::string_view tensor, std::span<const std::byte> bytes);
  // Syncs and renames. kInvalidArgument naming a tensor whose bytes are not all written.
  Status finish();

  const std::string& path() const;
  std::uint64_t file_bytes() const;

 private:
  struct State;
  struct Delete {
    void operator()(State* state) const;
  };
  friend class ShardedWriter;
  Status sync();    // everything but the rename
  Status rename();  // onto path()
  std::unique_ptr<State, Delete> state_;
};

// A model folder's tensors: model.safetensors, or, when they exceed `max_shard_bytes`, shards
// model-0000i-of-0000n.safetensors with model.safetensors.index.json. A tensor is never split.
// Nothing carries its final name before finish(), and the index comes last.
class ShardedWriter {
 public:
  // `folder` must exist and hold no model*.safetensors or index yet (kInvalidArgument).
  static Result<ShardedWriter> create(const std::string& folder,
                                      const std::vector<TensorPlan>& tensors,
                                      std::uint64_t max_shard_bytes,
                                      const std::map<std::string, std::string>& metadata = {});

  Status write(std::string_view tensor, std::span<const std::byte> bytes);
  Status finish();
  std::size_t shards() const { return writers_.size(); }

 private:
  std::string folder_;
  std::uint64_t tensor_bytes_ = 0;
  std::vector<SafetensorsWriter> writers_;
  std::map<std::string, std::size_t, std::less<>> shard_of_;  // into writers_
};

// A whole small file under the same promise: complete or absent.
Status write_text_file(const std::string& path, std::string_view text);

}  // namespace monolayer

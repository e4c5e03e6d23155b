#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

std::string join(const std::string& folder, const std::string& file) {
  return (std::filesystem::path(folder) / file).string();
}

Status check_free_folder(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name == "model.safetensors" || name == kIndex || looks_like_shard(name)) {
      return {Code::kInvalidArgument, folder,
              "already holds " + quote_name(name) + ", choose an empty folder"};
    }
  }
  if (error) return {Code::kNotFound, folder, "cannot list the folder: " + error.message()};
  return ok_status();
}

// Tensors in order, a new shard whenever the next one would pass the bound.
Result<std::vector<std::vector<TensorPlan>>> split(const std::string& folder,
                                                   const std::vector<TensorPlan>& tensors,
                                                   std::uint64_t max_bytes, std::uint64_t& total) {
  std::vector<std::vector<TensorPlan>> shards(1);
  std::uint64_t used = 0;
  for (const TensorPlan& tensor : tensors) {
    const std::optional<std::int64_t> elements = tensor.shape.elements();
    std::uint64_t bytes = 0;
    if (!elements ||
        __builtin_mul_overflow(static_cast<std::uint64_t>(*elements), dtype_size(tensor.dtype),
                               &bytes) ||
        __builtin_add_overflow(total, bytes, &total) || total > INT64_MAX) {
      return Status(Code::kInvalidArgument, folder,
                    "tensor " + quote_name(tensor.name) + ": shape " + tensor.shape.to_string() +
                        " overflows 63 bits of bytes");
    }
    if (!shards.back().empty() && (bytes > max_bytes || used > max_bytes - bytes)) {
      shards.emplace_back();
      used = 0;
    }
    used += bytes;
    shards.back().push_back(tensor);
  }
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  if (count == 1) return "model.safetensors";
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name.data();
}

}  // namespace

Result<ShardedWriter> ShardedWriter::create(const std::string& folder,
                                            const std::vector<TensorPlan>& tensors,
                                            std::uint64_t max_shard_bytes,
                                            const std::map<std::string, std::string>& metadata) {
  ML_RETURN_IF_ERROR(check_free_folder(folder));
  ShardedWriter writer;
  writer.folder_ = folder;
  ML_ASSIGN_OR_RETURN(const auto shards,
                      split(folder, tensors, max_shard_bytes, writer.tensor_bytes_));
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const TensorPlan& tensor : shards[i]) {
      if (!writer.shard_of_.emplace(tensor.name, i).second) {
        return Status(Code::kInvalidArgument, folder,
                      "tensor " + quote_name(tensor.name) + " is announced twice");
      }
    }
    ML_ASSIGN_OR_RETURN(
        SafetensorsWriter shard,
        SafetensorsWriter::create(join(folder, shard_name(i, shards.size())), shards[i], metadata));
    writer.writers_.push_back(std::move(shard));
  }
  return writer;
}

Status ShardedWriter::write(std::string_view tensor, std::span<const std::byte> bytes) {
  const auto at = shard_of_.find(tensor);
  if (at == shard_of_.end()) {
    return {Code::kInvalidArgument, folder_, "tensor " + quote_name(tensor) + " was not announced"};
  }
  return writers_[at->second].write(tensor, bytes);
}

Status ShardedWriter::finish() {
  for (SafetensorsWriter& writer : writers_) ML_RETURN_IF_ERROR(writer.sync());
  for (SafetensorsWriter& writer : writers_) ML_RETURN_IF_ERROR(writer.rename());
  if (writers_.size() == 1) return ok_status();
  nlohmann::json index;
  index["metadata"]["total_size"] = tensor_bytes_;
  index["weight_map"] = nlohmann::json::object();
  for (const auto& [tensor, shard] : shard_of_)
    index["weight_map"][tensor] = shard_name(shard, writers_.size());
  return write_text_file(join(folder_, kIndex), index.dump(1) + "\n");
}

}  // namespace monolayer

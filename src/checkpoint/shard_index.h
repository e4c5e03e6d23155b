// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <cstdint>

#include "core/status.h"

namespace monolayer {

struct ShardIndex {
  std::map<std::string, std::string, std::less<>> shard_of;  // tensor name to shard file name
  std::optional<std::uint64_t> total_size;                   // metadata.total_size, if stated
};

// kInvalidFile naming the field: weight_map missing, empty or of wrong types, a duplicate name, a
// shard name that is not a plain *.safetensors file name.
Result<ShardIndex> parse_shard_index(std::string_view json, const std::string& file);

// "model-00001-of-00002.safetensors" and the like: <stem>-<digits>-of-<digits>.safetensors.
bool looks_like_shard(std::string_view file_name);

}  // namespace monolayer

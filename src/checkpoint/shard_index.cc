#include "checkpoint/shard_index.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

// Why a shard name is refused; empty if it is a plain file name.
std::string_view shard_name_fault(std::string_view name) {
  if (name.find('\0') != std::string_view::npos) return "holds a NUL character";
  if (name.find('/') != std::string_view::npos || name.find('\\') != std::string_view::npos)
    return "is not a plain file name (it holds a path separator)";
  if (!name.ends_with(kSuffix) || name.size() == kSuffix.size())
    return "does not end in .safetensors";
  return {};
}

bool take_digits(std::string_view& text) {
  const std::size_t before = text.size();
  while (!text.empty() && text.back() >= '0' && text.back() <= '9') text.remove_suffix(1);
  return text.size() < before;
}

}  // namespace

bool looks_like_shard(std::string_view file_name) {
  if (!file_name.ends_with(kSuffix)) return false;
  file_name.remove_suffix(kSuffix.size());
  if (!take_digits(file_name) || !file_name.ends_with("-of-")) return false;
  file_name.remove_suffix(4);
  return take_digits(file_name) && file_name.ends_with('-');
}

Result<ShardIndex> parse_shard_index(std::string_view text, const std::string& file) {
  ML_ASSIGN_OR_RETURN(const nlohmann::json json, parse_json(text, file));
  const auto refuse = [&](const std::string& message) {
    return Status(Code::kInvalidFile, file, message);
  };
  if (!json.is_object()) return refuse("is no JSON object");
  const auto map = json.find("weight_map");
  if (map == json.end()) return refuse("field 'weight_map' is missing");
  if (!map->is_object()) return refuse("field 'weight_map' is no object");
  if (map->empty()) return refuse("field 'weight_map' names no tensor");
  ShardIndex index;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string())
      return refuse("weight_map: shard of " + quote_name(name) + " is no string");
    const auto& shard_name = shard.get_ref<const std::string&>();
    const std::string_view fault = shard_name_fault(shard_name);
    if (!fault.empty()) {
      return refuse("weight_map: shard name " + quote_name(shard_name) + " of " + quote_name(name) +
                    " " + std::string(fault));
    }
    index.shard_of.emplace(name, shard_name);
  }
  const auto metadata = json.find("metadata");
  if (metadata == json.end() || metadata->is_null()) return index;
  if (!metadata->is_object()) return refuse("field 'metadata' is no object");
  const auto total = metadata->find("total_size");
  if (total == metadata->end() || total->is_null()) return index;
  if (!total->is_number()) return refuse("field 'metadata.total_size' is no number");
  if (total->is_number_unsigned()) index.total_size = total->get<std::uint64_t>();
  return index;
}

}  // namespace monolayer

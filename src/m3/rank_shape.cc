#include <string>

#include "m3/config.h"

namespace monolayer::m3 {
namespace {

// Matrices split along columns only between whole groups that share an MX scale.
constexpr std::int64_t kColumnUnit = 32;
constexpr std::int64_t kMaxRanks = 8;  // partial sums are kept in eighths

Status refuse(const char* field, std::int64_t value, std::int64_t divisor, const char* what) {
  return {Code::kUnsupported, "tensor-parallel size",
          std::string(field) + " of " + std::to_string(value) + " is not a multiple of " +
              std::to_string(divisor) + " " + what};
}

}  // namespace

Result<RankShape> rank_shape(const ModelConfig& config, std::int64_t rank, std::int64_t size) {
  if (size < 1) {
    return Status(Code::kInvalidArgument, "tensor-parallel size",
                  "must be at least 1, is " + std::to_string(size));
  }
  if (rank < 0 || rank >= size) {
    return Status(Code::kInvalidArgument, "tensor-parallel rank",
                  "must be in [0, " + std::to_string(size) + "), is " + std::to_string(rank));
  }
  if (config.num_heads % size != 0) {
    return refuse("num_attention_heads", config.num_heads, size, "ranks");
  }
  if (config.num_kv_heads % size != 0 && size % config.num_kv_heads != 0) {
    return refuse("num_key_value_heads", config.num_kv_heads, size, "ranks (nor the reverse)");
  }
  if (config.vocab_size % size != 0) return refuse("vocab_size", config.vocab_size, size, "ranks");
  if (size > 1) {
    const std::int64_t unit = kColumnUnit * size;
    const char* what = "(32 columns a rank)";
    if (config.q_width() % unit != 0) {
      return refuse("num_attention_heads x head_dim", config.q_width(), unit, what);
    }
    if (config.dense_width % unit != 0) {
      return refuse("dense_intermediate_size", config.dense_width, unit, what);
    }
    if (config.expert_width % unit != 0) {
      return refuse("intermediate_size", config.expert_width, unit, what);
    }
    if (config.shared_width % unit != 0) {
      return refuse("shared_intermediate_size", config.shared_width, unit, what);
    }
  }
  if (size > kMaxRanks || (size & (size - 1)) != 0) {
    return Status(Code::kUnsupported, "tensor-parallel size",
                  "must be 1, 2, 4 or 8, is " + std::to_string(size));
  }

  RankShape shape;
  shape.rank = rank;
  shape.size = size;
  shape.heads = config.num_heads / size;
  shape.first_head = rank * shape.heads;
  shape.kv_heads = size >= config.num_kv_heads ? 1 : config.num_kv_heads / size;
  shape.first_kv_head = shape.first_head / config.group_size();
  shape.qkv_rows = (shape.heads + 2 * shape.kv_heads) * config.head_dim;
  // Each KV head brings its own index query head; the single index key is on every rank.
  shape.qkv_index_rows = shape.qkv_rows + (shape.kv_heads + 1) * config.index_dim;
  shape.expert_width = config.expert_width / size;
  shape.shared_width = config.shared_width / size;
  shape.dense_width = config.dense_width / size;
  shape.vocab_rows = config.vocab_size / size;
  return shape;
}

ModelConfig rank_config(const ModelConfig& config, const RankShape& shape) {
  ModelConfig local = config;
  local.num_heads = shape.heads;
  local.num_kv_heads = shape.kv_heads;
  if (local.index_heads > 0) local.index_heads = shape.kv_heads;
  local.dense_width = shape.dense_width;
  local.expert_width = shape.expert_width;
  local.shared_width = shape.shared_width;
  return local;
}

}  // namespace monolayer::m3

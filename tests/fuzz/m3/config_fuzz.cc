// Any JSON as a configuration: parse_config returns, and what it accepts keeps its own promises.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <nlohmann/json.hpp>

#include "m3/config.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace monolayer;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) return 0;
  const auto parsed = m3::parse_config(json, "config.json");
  if (!parsed.ok()) {
    require(parsed.status().code() != Code::kInternal);
    require(parsed.status().to_string().find('\n') == std::string::npos);
    return 0;
  }
  const m3::ModelConfig& c = *parsed;
  require(c.layers.size() == static_cast<std::size_t>(c.num_layers));
  require(c.num_heads % c.num_kv_heads == 0);
  require(c.rotary_dim % 2 == 0 && c.rotary_dim >= 2 && c.rotary_dim <= c.head_dim);
  if (c.any_sparse()) {
    require(c.index_heads == c.num_kv_heads && c.index_dim >= c.rotary_dim);
    require(m3::kPageTokens % c.block_size == 0);
    require(c.init_blocks + c.local_blocks <= c.topk_blocks);
  }
  if (c.any_moe()) require(c.experts_per_token >= 1 && c.experts_per_token <= c.num_experts);
  for (std::int64_t tp : {1, 2, 3, 4, 8}) {
    const auto shape = m3::rank_shape(c, tp - 1, tp);
    require(!shape.ok() || shape->heads * tp == c.num_heads);
  }
  return 0;
}

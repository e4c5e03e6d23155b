#include "m3/config_sections.h"

#include <algorithm>
#include <cmath>

#include "m3/config_policy.h"

namespace monolayer::m3 {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxExperts = 4096;
constexpr std::int64_t kMaxBlocks = 1 << 20;

// A value given in either of two places, or in both and equal there.
std::int64_t either(FieldReader& a, std::string_view a_field, FieldReader* b,
                    std::string_view b_field, std::int64_t low, std::int64_t high,
                    std::optional<std::int64_t> fallback = {}) {
  const bool in_b = b != nullptr && b->given(b_field);
  if (!in_b) return a.integer(a_field, low, high, fallback);
  const std::int64_t value = b->integer(b_field, low, high);
  if (a.given(a_field) && a.integer(a_field, low, high) != value) {
    a.invalid(a_field, "contradicts " + b->path(b_field) + ", " + std::to_string(value));
  }
  return value;
}

// Two ways of writing the same per-layer list.
std::vector<bool> agreed(FieldReader& a, std::string_view a_field, const std::vector<bool>& first,
                         const std::string& b_path, const std::vector<bool>& second) {
  if (first.empty()) return second;
  for (std::size_t i = 0; i < second.size() && i < first.size(); ++i) {
    if (first[i] != second[i]) {
      a.invalid(a_field, "contradicts " + b_path + " at layer " + std::to_string(i));
      break;
    }
  }
  return first;
}

void refuse_scaling(FieldReader& text) {
  const Json* scaling = text.object("rope_scaling");
  if (scaling == nullptr) return;
  for (auto it = scaling->begin(); it != scaling->end(); ++it) {
    const bool type = it.key() == "rope_type" || it.key() == "type";
    const bool off = it->is_null() || (type && *it == Json("default")) ||
                     (it.key() == "factor" && *it == Json(1));
    if (!off) {
      text.unsupported("rope_scaling",
                       "must be null or the default type; " + it.key() + " is " + brief(*it));
      return;
    }
  }
}

}  // namespace

void read_rotary(FieldReader& text, ModelConfig& config) {
  constexpr double kMaxTheta = 1e12;
  refuse_scaling(text);
  // Newer transformers moves these fields into an object of their own.
  static const Json kNone = Json::object();
  const Json* moved = text.object("rope_parameters");
  ReadLog& log = text.log();
  FieldReader parameters(moved != nullptr ? *moved : kNone, text.path("rope_parameters."), log);
  parameters.only_text("rope_type", "default");
  parameters.only_text("type", "default");

  FieldReader& theta_owner = parameters.given("rope_theta") ? parameters : text;
  config.rope_theta = theta_owner.number("rope_theta", 1, kMaxTheta);
  if (&theta_owner == &parameters && text.given("rope_theta") &&
      text.number("rope_theta", 1, kMaxTheta) != config.rope_theta) {
    text.invalid("rope_theta", "contradicts " + parameters.path("rope_theta"));
  }

  const auto from_factor = [&](FieldReader& owner) {
    const double factor = owner.number("partial_rotary_factor", 0, 1);
    return static_cast<std::int64_t>(static_cast<double>(config.head_dim) * factor);
  };
  std::int64_t dim = text.integer("rotary_dim", 2, config.head_dim, 0);
  for (FieldReader* owner : {&text, &parameters}) {
    if (!owner->given("partial_rotary_factor")) continue;
    const std::int64_t implied = from_factor(*owner);
    if (dim != 0 && dim != implied) {
      owner->invalid("partial_rotary_factor", "implies a rotary width of " +
                                                  std::to_string(implied) + ", contradicting " +
                                                  std::to_string(dim));
    }
    dim = implied;
  }
  if (dim == 0) {
    text.invalid("rotary_dim", "is required and missing, as is partial_rotary_factor");
  } else if (dim % 2 != 0 || dim < 2) {
    text.invalid("rotary_dim", "must be even and at least 2, is " + std::to_string(dim));
  }
  config.rotary_dim = dim;
  judge_unknown_fields(parameters);
}

void read_layers(FieldReader& text, ModelConfig& config) {
  const std::int64_t count = config.num_layers;
  const auto moe =
      agreed(text, "mlp_layer_types", text.names("mlp_layer_types", count, "dense", "sparse"),
             text.path("moe_layer_freq"), text.flags("moe_layer_freq", count));

  std::vector<bool> sparse =
      text.names("layer_types", count, "full_attention", "minimax_m3_sparse");
  if (const Json* nested = text.object("sparse_attention_config"); nested != nullptr) {
    FieldReader fields(*nested, text.path("sparse_attention_config."), text.log());
    std::vector<bool> frequency = fields.flags("sparse_attention_freq", count);
    if (!fields.boolean("use_sparse_attention", true)) {
      frequency.assign(static_cast<std::size_t>(count), false);
    }
    sparse = agreed(text, "layer_types", sparse, fields.path("sparse_attention_freq"), frequency);
  }
  if (moe.empty()) {
    text.invalid("moe_layer_freq", "is required and missing, as is mlp_layer_types");
    return;
  }
  if (sparse.empty()) {
    text.invalid("sparse_attention_config",
                 "sparse_attention_freq is required and missing, as is layer_types");
    return;
  }
  config.layers.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    config.layers[i] = {.sparse_attention = sparse[i], .moe = moe[i]};
  }
}

void read_moe(FieldReader& text, ModelConfig& config) {
  const bool moe = config.any_moe();
  const bool dense = std::any_of(config.layers.begin(), config.layers.end(),
                                 [](const LayerPattern& layer) { return !layer.moe; });
  const auto optional_unless = [](bool needed) {
    return needed ? std::optional<std::int64_t>() : std::optional<std::int64_t>(0);
  };
  config.dense_width =
      text.integer("dense_intermediate_size", 1, kMaxWidth, optional_unless(dense));
  config.expert_width = text.integer("intermediate_size", 1, kMaxWidth, optional_unless(moe));
  config.num_experts =
      either(text, "num_local_experts", &text, "num_experts", 1, kMaxExperts, optional_unless(moe));
  config.experts_per_token =
      text.integer("num_experts_per_tok", 1, std::max<std::int64_t>(config.num_experts, 1),
                   optional_unless(moe));
  // One shared expert: copies disagree on whether its width counts several of them.
  const std::int64_t shared = text.integer("n_shared_experts", 0, kMaxExperts, 1);
  if (shared > 1) {
    text.unsupported("n_shared_experts", "must be 0 or 1, is " + std::to_string(shared));
  }
  const std::int64_t width =
      text.integer("shared_intermediate_size", 0, kMaxWidth, optional_unless(moe && shared == 1));
  config.shared_width = shared == 1 ? width : 0;

  text.only_text("scoring_func", "sigmoid");
  text.only("norm_topk_prob", true);
  config.routing_bias = text.boolean("use_routing_bias", true);
  config.routed_scale = static_cast<float>(text.number(
      "routed_scaling_factor", 0, 1e6, moe ? std::optional<double>() : std::optional<double>(1.0)));
}

namespace {

// The older form counts tokens; `extra` is the block the row itself stands in.
std::int64_t blocks_of_tokens(FieldReader& fields, std::string_view blocks_field,
                              std::string_view tokens_field, std::int64_t extra,
                              std::int64_t block_size, std::int64_t fallback) {
  if (!fields.given(tokens_field)) return fields.integer(blocks_field, 0, kMaxBlocks, fallback);
  const std::int64_t tokens = fields.integer(tokens_field, 0, 1 << 24);
  const std::int64_t blocks = (tokens + block_size - 1) / block_size + extra;
  if (fields.given(blocks_field) && fields.integer(blocks_field, 0, kMaxBlocks) != blocks) {
    fields.invalid(blocks_field, "contradicts " + fields.path(tokens_field) + ", which covers " +
                                     std::to_string(blocks) + " blocks");
  }
  return blocks;
}

// Given per layer or once; only sparse layers count.
void refuse_index_values(FieldReader& fields, const ModelConfig& config) {
  constexpr std::string_view kField = "sparse_disable_index_value";
  const Json* value = fields.find(kField);
  if (value == nullptr) return;
  std::vector<bool> disabled;
  if (value->is_array()) {
    disabled = fields.flags(kField, config.num_layers);
  } else {
    const bool all =
        value->is_number() ? fields.integer(kField, 0, 1) == 1 : fields.boolean(kField, true);
    disabled.assign(config.layers.size(), all);
  }
  for (std::size_t i = 0; i < disabled.size(); ++i) {
    if (config.layers[i].sparse_attention && !disabled[i]) {
      fields.unsupported(kField, "index values are not part of this model; must be 1 at layer " +
                                     std::to_string(i));
      return;
    }
  }
}

}  // namespace

void read_sparse_attention(FieldReader& text, ModelConfig& config) {
  static const Json kNone = Json::object();
  const Json* nested = text.object("sparse_attention_config");
  FieldReader fields(nested != nullptr ? *nested : kNone, text.path("sparse_attention_config."),
                     text.log());
  fields.know({"sparse_attention_freq", "use_sparse_attention"});  // read_layers
  const std::optional<std::int64_t> none =
      config.any_sparse() ? std::optional<std::int64_t>() : std::optional<std::int64_t>(0);

  config.index_heads =
      either(text, "index_n_heads", &fields, "sparse_num_index_heads", 1, 1024, none);
  config.index_dim = either(text, "index_head_dim", &fields, "sparse_index_dim", 1, 1024, none);
  config.block_size =
      either(text, "index_block_size", &fields, "sparse_block_size", 1, kPageTokens, none);
  config.topk_blocks =
      either(text, "index_topk_blocks", &fields, "sparse_topk_blocks", 1, kMaxBlocks, none);
  const std::int64_t block = std::max<std::int64_t>(config.block_size, 1);
  config.init_blocks =
      blocks_of_tokens(fields, "sparse_init_block", "sparse_init_tokens", 0, block, 0);
  const std::int64_t local =
      blocks_of_tokens(fields, "sparse_local_block", "sparse_local_tokens", 1, block, -1);
  config.local_blocks = local >= 0 ? local : text.integer("index_local_blocks", 0, kMaxBlocks, 1);
  if (local >= 0 && text.given("index_local_blocks") &&
      text.integer("index_local_blocks", 0, kMaxBlocks) != local) {
    text.invalid("index_local_blocks",
                 "contradicts sparse_attention_config, " + std::to_string(local));
  }
  text.know({"index_local_blocks"});

  fields.only_text("sparse_score_type", "max");
  refuse_index_values(fields, config);
  refuse_index_sharing(fields);
  judge_unknown_fields(fields);
  if (!config.any_sparse()) return;

  if (kPageTokens % block != 0) {
    fields.unsupported("sparse_block_size", "must divide " + std::to_string(kPageTokens) + ", is " +
                                                std::to_string(block));
  }
  if (config.index_heads != config.num_kv_heads) {
    fields.unsupported("sparse_num_index_heads", "must equal num_key_value_heads, " +
                                                     std::to_string(config.num_kv_heads) + ", is " +
                                                     std::to_string(config.index_heads));
  }
  if (config.index_dim < config.rotary_dim) {
    fields.unsupported("sparse_index_dim", "must be at least rotary_dim, " +
                                               std::to_string(config.rotary_dim) + ", is " +
                                               std::to_string(config.index_dim));
  }
  if (config.init_blocks + config.local_blocks > config.topk_blocks) {
    fields.unsupported("sparse_topk_blocks",
                       "must hold the " + std::to_string(config.init_blocks) + " initial and " +
                           std::to_string(config.local_blocks) + " local blocks, is " +
                           std::to_string(config.topk_blocks));
  }
}

void refuse_index_sharing(FieldReader& fields) {
  fields.only("use_index_cache", false);
  const std::string message = "sharing a selection between layers is not supported; must be absent";
  if (fields.integer("index_topk_freq", 0, INT32_MAX, 1) > 1) {
    fields.unsupported("index_topk_freq", message + " or 1");
  }
  if (fields.text("index_topk_pattern", "").find('S') != std::string::npos) {
    fields.unsupported("index_topk_pattern", message + " or without S");
  }
  // On its own the offset does nothing.
  fields.know({"index_skip_topk_offset"});
}

}  // namespace monolayer::m3

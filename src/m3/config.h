// What a MiniMax-M3 config.json says, typed, checked and with every default filled in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/status.h"

namespace monolayer::m3 {

// Widest page of the paged caches, in tokens; independent of the model's selection block.
inline constexpr std::int64_t kPageTokens = 128;

struct LayerPattern {
  bool sparse_attention = false;  // block-sparse attention with an index branch, else full causal
  bool moe = false;               // routed experts plus shared expert, else dense MLP
};

struct ModelConfig {
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;     // query heads
  std::int64_t num_kv_heads = 0;  // query head n reads KV head n / group_size()
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;  // leading dims of a head that rotate, half-split pairs
  double rope_theta = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;
  float rms_eps = 0;

  std::int64_t dense_width = 0;   // intermediate width of dense MLP layers
  std::int64_t expert_width = 0;  // of each routed expert
  std::int64_t shared_width = 0;  // of the shared expert, 0 if there is none
  std::int64_t num_experts = 0;
  std::int64_t experts_per_token = 0;
  bool routing_bias = false;  // e_score_correction_bias present: used for choosing only
  float routed_scale = 1;     // multiplies the routed sum, never the shared expert
  float shared_weight = 1;    // multiplies the shared expert's output; no config.json says another
  float softmax_scale = 0;    // of attention's products; 0: head_dim^-1/2, as of every config.json
  float swiglu_alpha = 0, swiglu_limit = 0, swiglu_beta = 1;

  std::int64_t index_heads = 0;  // equals num_kv_heads: head g selects for KV head g
  std::int64_t index_dim = 0;
  std::int64_t block_size = 0;   // keys of a selection block, divides kPageTokens
  std::int64_t topk_blocks = 0;  // forced blocks count inside it
  std::int64_t init_blocks = 0, local_blocks = 0;

  bool tie_word_embeddings = false;
  std::vector<LayerPattern> layers;         // [num_layers]
  std::vector<std::int32_t> eos_token_ids;  // generation stops on any of them
  std::int32_t bos_token_id = -1;           // -1: none declared

  std::vector<std::string> notes;  // fields seen and ignored, one line each, for the log

  float attention_scale() const;  // softmax_scale, or what its 0 stands for
  std::int64_t group_size() const { return num_heads / num_kv_heads; }
  std::int64_t q_width() const { return num_heads * head_dim; }
  std::int64_t kv_width() const { return num_kv_heads * head_dim; }
  std::int64_t index_width() const { return index_heads * index_dim; }
  bool any_sparse() const;
  bool any_moe() const;
};

// Reads both styles: the hub's nested `text_config` and a flat text-only config. A value this
// build cannot honour is refused by field name and bound (kUnsupported); a wrong type or an
// impossible value is kInvalidFile. `name` is the file named in messages.
Result<ModelConfig> parse_config(const nlohmann::json& root, const std::string& name);

// One rank's share of a tensor-parallel group of `size`.
struct RankShape {
  std::int64_t rank = 0, size = 1;
  std::int64_t first_head = 0, heads = 0;        // query heads
  std::int64_t first_kv_head = 0, kv_heads = 0;  // at size > num_kv_heads, KV heads are replicated
  std::int64_t qkv_rows = 0;                     // q, k, v (and index q, index k on sparse layers)
  std::int64_t qkv_index_rows = 0;
  std::int64_t expert_width = 0, shared_width = 0, dense_width = 0, vocab_rows = 0;
};
// Refuses sizes that do not divide the model, naming the dimension.
Result<RankShape> rank_shape(const ModelConfig& config, std::int64_t rank, std::int64_t size);

// The model as one rank sees it: heads, index heads and widths are its share; the vocabulary, the
// experts and everything else stay whole.
ModelConfig rank_config(const ModelConfig& config, const RankShape& shape);

}  // namespace monolayer::m3

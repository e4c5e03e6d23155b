#include <cstring>
#include <string>
#include <vector>

#include "m3/tensor_finder.h"
#include "m3/weights.h"

namespace monolayer::m3 {

namespace {

// Where the text model and the head are, by wrapper.
struct Prefix {
  const char* model;
  const char* head;
};
constexpr Prefix kPrefixes[] = {
    {"language_model.model.", "language_model.lm_head"},  // the hub
    {"model.language_model.", "lm_head"},                 // saved again by transformers
    {"model.", "lm_head"},                                // text only
};

// Names of the three matrices; what is stored under none of them is reported under the first.
struct MlpNames {
  const char *gate, *up, *down;
};
constexpr MlpNames kProjections = {"gate_proj", "up_proj", "down_proj"};
constexpr MlpNames kNumbered = {"w1", "w3", "w2"};

MlpWeights bind_mlp(TensorFinder& find, const std::string& base, std::int64_t width,
                    std::int64_t hidden, const MlpNames& first = kProjections) {
  const MlpNames& second = &first == &kNumbered ? kProjections : kNumbered;
  MlpWeights mlp;
  if (find.has(base + "gate_up_proj")) {
    const QuantizedMatrix packed = find.matrix(base + "gate_up_proj", 2 * width, hidden,
                                               {base + "gate_proj", base + "up_proj"});
    mlp.gate = find.rows_of(packed, 0, width);
    mlp.up = find.rows_of(packed, width, width);
  } else {
    mlp.gate = find.matrix(find.first_of({base + first.gate, base + second.gate}), width, hidden);
    mlp.up = find.matrix(find.first_of({base + first.up, base + second.up}), width, hidden);
  }
  mlp.down = find.matrix(find.first_of({base + first.down, base + second.down}), hidden, width);
  return mlp;
}

void bind_attention(TensorFinder& find, const ModelConfig& config, bool sparse,
                    const std::string& base, LayerWeights& layer) {
  const std::int64_t q = config.q_width(), kv = config.kv_width(), hidden = config.hidden_size;
  const std::int64_t iq = config.index_width(), ik = config.index_dim;
  bool index_is_packed = false;
  if (find.has(base + "qkv_proj")) {
    // Row order q, k, v, and in engines that fuse the index branch: index q, index k.
    index_is_packed = sparse && find.first_axis(base + "qkv_proj") == q + 2 * kv + iq + ik;
    std::vector<std::string> parts = {base + "q_proj", base + "k_proj", base + "v_proj"};
    if (index_is_packed) {
      parts.push_back(base + "index_q_proj");
      parts.push_back(base + "index_k_proj");
    }
    const QuantizedMatrix packed =
        find.matrix(base + "qkv_proj", q + 2 * kv + (index_is_packed ? iq + ik : 0), hidden, parts);
    layer.q = find.rows_of(packed, 0, q);
    layer.k = find.rows_of(packed, q, kv);
    layer.v = find.rows_of(packed, q + kv, kv);
    if (index_is_packed) {
      layer.index_q = find.rows_of(packed, q + 2 * kv, iq);
      layer.index_k = find.rows_of(packed, q + 2 * kv + iq, ik);
    }
  } else {
    layer.q = find.matrix(base + "q_proj", q, hidden);
    layer.k = find.matrix(base + "k_proj", kv, hidden);
    layer.v = find.matrix(base + "v_proj", kv, hidden);
  }
  layer.o = find.matrix(base + "o_proj", hidden, q);
  layer.q_norm = find.vector(base + "q_norm.weight", DType::kBF16, config.head_dim);
  layer.k_norm = find.vector(base + "k_norm.weight", DType::kBF16, config.head_dim);
  if (!sparse) return;

  const auto index_name = [&](const char* part) {
    return find.first_of({base + "index_" + part, base + "indexer." + part});
  };
  if (!index_is_packed) {
    layer.index_q = find.matrix(index_name("q_proj"), iq, hidden);
    layer.index_k = find.matrix(index_name("k_proj"), ik, hidden);
  }
  layer.index_q_norm = find.vector(index_name("q_norm") + ".weight", DType::kBF16, ik);
  layer.index_k_norm = find.vector(index_name("k_norm") + ".weight", DType::kBF16, ik);
}

// One matrix per expert, stacked along the first axis; gate and up apart or packed.
void bind_stacked(TensorFinder& find, const ModelConfig& config, const std::string& base,
                  std::int64_t count, std::vector<MlpWeights>& experts) {
  const std::int64_t width = config.expert_width, hidden = config.hidden_size;
  const bool packed = find.has(base + "gate_up_proj");
  QuantizedMatrix gate_up, gate, up;
  if (packed) {
    gate_up = find.stack(base + "gate_up_proj", count, 2 * width, hidden);
  } else {
    gate = find.stack(base + "gate_proj", count, width, hidden);
    up = find.stack(base + "up_proj", count, width, hidden);
  }
  const QuantizedMatrix down = find.stack(base + "down_proj", count, hidden, width);
  for (std::int64_t e = 0; e < count; ++e) {
    MlpWeights expert;
    if (packed) {
      expert.gate = find.rows_of(gate_up, e * 2 * width, width);
      expert.up = find.rows_of(gate_up, e * 2 * width + width, width);
    } else {
      expert.gate = find.rows_of(gate, e * width, width);
      expert.up = find.rows_of(up, e * width, width);
    }
    expert.down = find.rows_of(down, e * hidden, hidden);
    experts.push_back(expert);
  }
}

void bind_moe(TensorFinder& find, const ModelConfig& config, const std::string& layer_base,
              LayerWeights& layer) {
  const std::string base =
      find.has(layer_base + "mlp.gate") ? layer_base + "mlp." : layer_base + "block_sparse_moe.";
  const std::int64_t experts = config.num_experts;
  layer.router = find.plain(base + "gate", experts, config.hidden_size);
  if (config.routing_bias) {
    layer.router_bias = find.vector(
        find.first_of({base + "e_score_correction_bias", base + "gate.e_score_correction_bias"}),
        DType::kF32, experts);
  }

  std::string shared;
  for (const char* name : {"shared_experts.", "shared_expert."}) {
    for (const char* part : {"gate_proj", "gate_up_proj", "w1"}) {
      if (find.has(base + name + part)) shared = base + name;
    }
  }
  // Without tensors of its own, the shared expert is the last one of the table.
  const bool shared_is_last =
      config.shared_width > 0 && shared.empty() && config.shared_width == config.expert_width;

  const std::string stack = base + "experts.";
  if (find.has(stack + "gate_up_proj") || find.has(stack + "gate_proj")) {
    const std::string probe = find.first_of({stack + "gate_up_proj", stack + "gate_proj"});
    const bool one_more = shared_is_last && find.first_axis(probe) == experts + 1;
    bind_stacked(find, config, stack, experts + (one_more ? 1 : 0), layer.experts);
    if (one_more) {
      layer.shared = layer.experts.back();
      layer.experts.pop_back();
      return;
    }
  } else {
    const auto expert = [&](std::int64_t e) { return stack + std::to_string(e) + "."; };
    for (std::int64_t e = 0; e < experts; ++e) {
      layer.experts.push_back(
          bind_mlp(find, expert(e), config.expert_width, config.hidden_size, kNumbered));
    }
    if (shared_is_last &&
        (find.has(expert(experts) + "w1") || find.has(expert(experts) + "gate_proj") ||
         find.has(expert(experts) + "gate_up_proj"))) {
      layer.shared = bind_mlp(find, expert(experts), config.shared_width, config.hidden_size);
      return;
    }
  }
  if (config.shared_width > 0) {
    layer.shared = bind_mlp(find, shared.empty() ? base + "shared_experts." : shared,
                            config.shared_width, config.hidden_size);
  }
}

// With tied embeddings a stored head is redundant and must be the same table.
QuantizedMatrix bind_head(TensorFinder& find, const ModelConfig& config, const char* name,
                          const QuantizedMatrix& embed) {
  if (!config.tie_word_embeddings) {
    return find.matrix(name, config.vocab_size, config.hidden_size);
  }
  if (find.has(name)) {
    const QuantizedMatrix head = find.matrix(name, config.vocab_size, config.hidden_size);
    const TensorView &a = head.weight, &b = embed.weight;
    if (!a.empty() && !b.empty() &&
        (a.dtype != b.dtype || a.bytes != b.bytes || std::memcmp(a.data, b.data, a.bytes) != 0)) {
      find.fail(Status(Code::kInvalidFile, std::string(a.file),
                       "tensor '" + std::string(a.name) +
                           "' differs from the embedding although tie_word_embeddings is true"));
    }
  }
  return embed;
}

}  // namespace

Result<ModelWeights> bind_weights(const ModelConfig& config, const Checkpoint& checkpoint,
                                  ValueCheck check) {
  ML_ASSIGN_OR_RETURN(const QuantizationConfig formats, QuantizationConfig::of(checkpoint));
  TensorFinder find(checkpoint, formats, check);

  const Prefix* prefix = &kPrefixes[0];
  for (const Prefix& candidate : kPrefixes) {
    if (find.has(std::string(candidate.model) + "embed_tokens")) {
      prefix = &candidate;
      break;
    }
  }
  const std::string model = prefix->model;
  ModelWeights weights;
  weights.layout = model + "*";
  weights.embed = find.plain(model + "embed_tokens", config.vocab_size, config.hidden_size);
  weights.final_norm = find.vector(model + "norm.weight", DType::kBF16, config.hidden_size);
  weights.lm_head = bind_head(find, config, prefix->head, weights.embed);

  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const std::string base = model + "layers." + std::to_string(i) + ".";
    const LayerPattern& pattern = config.layers[static_cast<std::size_t>(i)];
    LayerWeights& layer = weights.layers.emplace_back();
    layer.input_norm =
        find.vector(base + "input_layernorm.weight", DType::kBF16, config.hidden_size);
    layer.post_norm =
        find.vector(base + "post_attention_layernorm.weight", DType::kBF16, config.hidden_size);
    bind_attention(find, config, pattern.sparse_attention, base + "self_attn.", layer);
    if (pattern.moe) {
      bind_moe(find, config, base, layer);
    } else {
      layer.dense = bind_mlp(find, base + "mlp.", config.dense_width, config.hidden_size);
    }
  }
  ML_RETURN_IF_ERROR(find.finish(weights.ignored));
  return weights;
}

}  // namespace monolayer::m3

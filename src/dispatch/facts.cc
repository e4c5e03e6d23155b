// Deployment facts of a checkpoint.
#include <algorithm>
#include <optional>
#include <utility>

#include "dispatch/refusals.h"

namespace monolayer::dispatch {
namespace {

using std::to_string;

std::string describe(const TensorView& tensor) {
  return std::string(tensor.name) + " in " + std::string(dtype_name(tensor.dtype));
}

bool known_format(const QuantizedMatrix& matrix) {
  return matrix.empty() || matrix.format != WeightFormat::kPlain ||
         matrix.weight.dtype == DType::kBF16;
}

// First offending matrix, described; keeps what is there already.
void note(std::string& text, const QuantizedMatrix& matrix) {
  if (text.empty() && !known_format(matrix)) text = describe(matrix.weight);
}
void note(std::string& text, const m3::MlpWeights& mlp) {
  note(text, mlp.gate);
  note(text, mlp.up);
  note(text, mlp.down);
}
void note(std::string& text, const TensorView& tensor, DType dtype) {
  if (text.empty() && !tensor.empty() && tensor.dtype != dtype) text = describe(tensor);
}

std::string layer_offender(const m3::ModelConfig& config) {
  std::optional<std::size_t> first_sparse;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const m3::LayerPattern& pattern = config.layers[i];
    if (pattern.sparse_attention && !pattern.moe) {
      return "layer " + to_string(i) + " with sparse attention and a dense MLP";
    }
    if (pattern.sparse_attention && !first_sparse) first_sparse = i;
    if (!pattern.sparse_attention && first_sparse) {
      return "layer " + to_string(i) + " without sparse attention after layer " +
             to_string(*first_sparse) + " with it";
    }
  }
  return {};
}

}  // namespace

DeploymentFacts deployment_facts(const m3::ModelConfig& config, const m3::ModelWeights& weights,
                                 const DeploymentOptions& options) {
  DeploymentFacts facts;
  facts.backend = configured(options.backend);
  facts.tensor_parallel = configured(options.tensor_parallel);
  facts.kv_cache = configured(options.kv_cache);
  facts.index_cache = configured(options.index_cache);
  // Serving a context longer than the fused path's is a native matter: the deployment is judged by
  // what it serves.
  facts.max_model_length =
      configured(options.max_model_length > 0 ? options.max_model_length : config.max_positions);
  facts.layer_offender = configured(layer_offender(config));
  std::int64_t sparse = 0;
  for (const m3::LayerPattern& pattern : config.layers) {
    sparse += pattern.sparse_attention && pattern.moe ? 1 : 0;
  }
  facts.sparse_moe_layers = configured(sparse);
  const auto shape = m3::rank_shape(config, 0, options.tensor_parallel);
  if (!shape.ok()) facts.shape_offender = configured(shape.status().to_string());
  facts.selection_block = configured(config.any_sparse() ? config.block_size : 128);
  facts.selection_topk = configured(config.any_sparse() ? config.topk_blocks : 1);
  facts.index_heads = configured(config.any_sparse() ? config.index_heads : config.num_kv_heads);
  facts.kv_heads = configured(config.num_kv_heads);
  facts.rotary_dim = configured(config.rotary_dim);
  facts.head_dim = configured(config.head_dim);
  facts.index_dim = configured(config.any_sparse() ? config.index_dim : config.head_dim);

  std::string attention, norms, router, bias, experts, shared;
  for (std::size_t i = 0; i < weights.layers.size() && i < config.layers.size(); ++i) {
    if (!config.layers[i].sparse_attention || !config.layers[i].moe) continue;
    const m3::LayerWeights& layer = weights.layers[i];
    for (const QuantizedMatrix* matrix :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.index_q, &layer.index_k}) {
      note(attention, *matrix);
    }
    for (const TensorView* norm : {&layer.input_norm, &layer.post_norm, &layer.q_norm,
                                   &layer.k_norm, &layer.index_q_norm, &layer.index_k_norm}) {
      note(norms, *norm, DType::kBF16);
    }
    const QuantizedMatrix& gate = layer.router;
    if (router.empty() &&
        (gate.format != WeightFormat::kPlain ||
         (gate.weight.dtype != DType::kBF16 && gate.weight.dtype != DType::kF32))) {
      router = describe(gate.weight);
    }
    note(bias, layer.router_bias, DType::kF32);
    for (const m3::MlpWeights& expert : layer.experts) note(experts, expert);
    note(shared, layer.shared);
  }
  facts.attention_offender = configured(std::move(attention));
  facts.norm_offender = configured(std::move(norms));
  facts.router_offender = configured(std::move(router));
  facts.bias_offender = configured(std::move(bias));
  facts.expert_offender = configured(std::move(experts));
  facts.shared_offender = configured(std::move(shared));
  return facts;
}

}  // namespace monolayer::dispatch

#include "engine/model_report.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "checkpoint/quantized_tensor.h"
#include "engine/memory_check.h"

namespace monolayer::engine {
namespace {

using Json = nlohmann::json;

std::int64_t bytes_of(const QuantizedMatrix& matrix) {
  return static_cast<std::int64_t>(matrix.weight.bytes + matrix.scale.bytes);
}
std::int64_t bytes_of(const TensorView& tensor) { return static_cast<std::int64_t>(tensor.bytes); }
std::int64_t bytes_of(const m3::MlpWeights& mlp) {
  return bytes_of(mlp.gate) + bytes_of(mlp.up) + bytes_of(mlp.down);
}
std::int64_t attention_bytes(const m3::LayerWeights& layer) {
  std::int64_t sum = 0;
  for (const auto* m : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.index_q, &layer.index_k})
    sum += bytes_of(*m);
  for (const auto* v : {&layer.input_norm, &layer.post_norm, &layer.q_norm, &layer.k_norm,
                        &layer.index_q_norm, &layer.index_k_norm})
    sum += bytes_of(*v);
  return sum;
}

std::string stored_as(const QuantizedMatrix& matrix) {
  return matrix.format == WeightFormat::kPlain ? std::string(dtype_name(matrix.weight.dtype))
                                               : std::string(format_name(matrix.format));
}

// Matrices and bytes of the parts of a model, by the format they are stored in.
class PartTable {
 public:
  void add(const char* part, const QuantizedMatrix& matrix) {
    if (matrix.empty()) return;
    Entry& entry = parts_[part][stored_as(matrix)];
    ++entry.matrices;
    entry.bytes += bytes_of(matrix);
  }
  void add(const char* part, const m3::MlpWeights& mlp) {
    add(part, mlp.gate);
    add(part, mlp.up);
    add(part, mlp.down);
  }
  Json json() const {
    Json result = Json::object();
    for (const auto& [part, formats] : parts_)
      for (const auto& [format, entry] : formats)
        result[part][format] = {{"matrices", entry.matrices}, {"bytes", entry.bytes}};
    return result;
  }

 private:
  struct Entry {
    std::int64_t matrices = 0, bytes = 0;
  };
  std::map<std::string, std::map<std::string, Entry>> parts_;
};

Json formats_of(const m3::ModelWeights& weights) {
  PartTable table;
  table.add("embedding", weights.embed);
  table.add("head", weights.lm_head);
  for (const m3::LayerWeights& layer : weights.layers) {
    for (const auto* m : {&layer.q, &layer.k, &layer.v, &layer.o}) table.add("attention", *m);
    table.add("index", layer.index_q);
    table.add("index", layer.index_k);
    table.add("dense_mlp", layer.dense);
    table.add("router", layer.router);
    for (const m3::MlpWeights& expert : layer.experts) table.add("experts", expert);
    table.add("shared_expert", layer.shared);
  }
  return table.json();
}

// Runs of equal layers: "0-2 full attention, dense MLP".
Json pattern_of(const m3::ModelConfig& config) {
  Json runs = Json::array();
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const m3::LayerPattern& layer = config.layers[static_cast<std::size_t>(i)];
    const char* attention = layer.sparse_attention ? "block-sparse" : "full";
    const char* mlp = layer.moe ? "moe" : "dense";
    if (!runs.empty() && runs.back()["attention"] == attention && runs.back()["mlp"] == mlp) {
      runs.back()["last"] = i;
    } else {
      runs.push_back({{"first", i}, {"last", i}, {"attention", attention}, {"mlp", mlp}});
    }
  }
  return runs;
}

Json config_of(const m3::ModelConfig& c) {
  return {
      {"hidden_size", c.hidden_size},
      {"num_layers", c.num_layers},
      {"num_heads", c.num_heads},
      {"num_kv_heads", c.num_kv_heads},
      {"head_dim", c.head_dim},
      {"rotary_dim", c.rotary_dim},
      {"rope_theta", c.rope_theta},
      {"vocab_size", c.vocab_size},
      {"max_positions", c.max_positions},
      {"rms_eps", c.rms_eps},
      {"dense_width", c.dense_width},
      {"expert_width", c.expert_width},
      {"shared_width", c.shared_width},
      {"num_experts", c.num_experts},
      {"experts_per_token", c.experts_per_token},
      {"routing_bias", c.routing_bias},
      {"routed_scale", c.routed_scale},
      {"swiglu", {{"alpha", c.swiglu_alpha}, {"limit", c.swiglu_limit}, {"beta", c.swiglu_beta}}},
      {"index_heads", c.index_heads},
      {"index_dim", c.index_dim},
      {"block_size", c.block_size},
      {"topk_blocks", c.topk_blocks},
      {"init_blocks", c.init_blocks},
      {"local_blocks", c.local_blocks},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"eos_token_ids", c.eos_token_ids},
      {"bos_token_id", c.bos_token_id}};
}

Json rank_json(const m3::ModelConfig& config, std::int64_t size) {
  const Result<m3::RankShape> shape = m3::rank_shape(config, 0, size);
  if (!shape.ok()) return {{"size", size}, {"refused", shape.status().to_string()}};
  return {{"size", size},
          {"heads", shape->heads},
          {"kv_heads", shape->kv_heads},
          {"qkv_rows", shape->qkv_rows},
          {"qkv_index_rows", shape->qkv_index_rows},
          {"expert_width", shape->expert_width},
          {"shared_width", shape->shared_width},
          {"dense_width", shape->dense_width},
          {"vocab_rows", shape->vocab_rows}};
}

}  // namespace

std::int64_t cache_bytes_per_token(const m3::ModelConfig& config, std::int64_t element_bytes) {
  std::int64_t values = 0;
  for (const m3::LayerPattern& layer : config.layers)
    values += 2 * config.kv_width() + (layer.sparse_attention ? config.index_dim : 0);
  return values * element_bytes;
}

std::int64_t weight_bytes_per_token(const m3::ModelConfig& config,
                                    const m3::ModelWeights& weights) {
  std::int64_t sum = bytes_of(weights.lm_head) + bytes_of(weights.final_norm);
  if (weights.embed.rows > 0) sum += bytes_of(weights.embed) / weights.embed.rows;
  for (const m3::LayerWeights& layer : weights.layers) {
    sum += attention_bytes(layer) + bytes_of(layer.dense) + bytes_of(layer.router) +
           bytes_of(layer.router_bias) + bytes_of(layer.shared);
    if (!layer.experts.empty()) sum += config.experts_per_token * bytes_of(layer.experts.front());
  }
  return sum;
}

Json model_report(const OpenModel& model, const m3::ModelWeights& weights) {
  const Checkpoint& checkpoint = model.checkpoint;
  std::int64_t ignored_bytes = 0;
  for (const std::string& name : weights.ignored)
    if (const TensorView* tensor = checkpoint.find(name)) ignored_bytes += bytes_of(*tensor);
  std::vector<std::string> notes = model.config.notes;
  notes.insert(notes.end(), checkpoint.notes().begin(), checkpoint.notes().end());
  Json ranks = Json::array();
  for (const std::int64_t size : {1, 2, 4, 8}) ranks.push_back(rank_json(model.config, size));
  return {{"folder", model.folder},
          {"files", checkpoint.files().size()},
          {"file_bytes", checkpoint.file_bytes()},
          {"tensors", checkpoint.tensors().size()},
          {"tensor_bytes", checkpoint.tensor_bytes()},
          {"layout", weights.layout},
          {"config", config_of(model.config)},
          {"layers", pattern_of(model.config)},
          {"formats", formats_of(weights)},
          {"ignored", {{"tensors", weights.ignored}, {"bytes", ignored_bytes}}},
          {"cache_bytes_per_token",
           {{"bf16", cache_bytes_per_token(model.config, 2)},
            {"fp8_e4m3", cache_bytes_per_token(model.config, 1)}}},
          {"weight_bytes_per_token", weight_bytes_per_token(model.config, weights)},
          {"tensor_parallel", ranks},
          {"notes", notes}};
}

}  // namespace monolayer::engine

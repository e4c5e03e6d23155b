#include "mono/library_bind.h"

#include <string>

namespace monolayer::mono {
namespace {

struct Slice {
  std::int64_t first, count;
};

Result<std::int32_t> abi_dtype(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
      return std::int32_t{ML_F32};
    case DType::kBF16:
      return std::int32_t{ML_BF16};
    case DType::kE4M3:
      return std::int32_t{ML_E4M3};
    default:
      return Status(Code::kUnsupported, std::string(tensor.name),
                    "type " + std::string(dtype_name(tensor.dtype)) +
                        " has no place in the library's interface");
  }
}

ml_tensor view(const void* data, std::int32_t dtype) {
  ml_tensor t = ML_TENSOR_INIT;
  t.data = const_cast<void*>(data);  // NOLINT: borrowed, and never written by the library
  t.dtype = dtype;
  t.layout = ML_LAYOUT_ROWS;
  t.device_type = ML_DEVICE_CPU;
  return t;
}

// Rows and columns of a row-major [.., stride] array of `unit` bytes an element.
ml_tensor view(const std::byte* data, std::int32_t dtype, std::int64_t stride, Slice rows,
               Slice cols) {
  ml_tensor t = view(data + (rows.first * stride + cols.first) * abi_dtype_size(dtype), dtype);
  t.rank = 2;
  t.shape[0] = rows.count;
  t.shape[1] = cols.count;
  t.strides[0] = stride;
  t.strides[1] = 1;
  return t;
}

ml_tensor view_vector(const std::byte* data, std::int32_t dtype, Slice range) {
  ml_tensor t = view(data + range.first * abi_dtype_size(dtype), dtype);
  t.rank = 1;
  t.shape[0] = range.count;
  t.strides[0] = 1;
  return t;
}

Status bind_vector(const TensorView& in, ml_tensor& out) {
  out = ML_TENSOR_INIT;
  if (in.empty()) return {};
  ML_ASSIGN_OR_RETURN(const std::int32_t dtype, abi_dtype(in));
  out = view_vector(in.data, dtype, {0, in.shape[0]});
  return {};
}

Status bind_matrix(const QuantizedMatrix& in, Slice rows, Slice cols, ml_matrix& out) {
  out = {};
  out.size = sizeof out;
  out.weight = out.scale = ML_TENSOR_INIT;
  if (in.empty()) return {};
  const std::byte* data = in.weight.data;
  switch (in.format) {
    case WeightFormat::kPlain: {
      ML_ASSIGN_OR_RETURN(const std::int32_t dtype, abi_dtype(in.weight));
      out.weight = view(data, dtype, in.cols, rows, cols);
      return {};
    }
    case WeightFormat::kFP8PerChannel:
      out.weight = view(data, ML_E4M3, in.cols, rows, cols);
      out.scale = view_vector(in.scale.data, ML_F32, rows);
      return {};
    case WeightFormat::kMXFP8:
    case WeightFormat::kMXFP4:
      out.weight = in.format == WeightFormat::kMXFP8
                       ? view(data, ML_E4M3, in.cols, rows, cols)
                       : view(data, ML_E2M1X2, in.cols / 2, rows, {cols.first / 2, cols.count / 2});
      out.scale = view(in.scale.data, ML_E8M0, in.cols / kMxGroup, rows,
                       {cols.first / kMxGroup, cols.count / kMxGroup});
      return {};
  }
  return {Code::kInternal, std::string(in.weight.name), "unknown weight format"};
}

Status bind_mlp(const m3::MlpWeights& in, std::int64_t hidden, Slice width, ml_mlp& out) {
  out = {};
  out.size = sizeof out;
  ML_RETURN_IF_ERROR(bind_matrix(in.gate, width, {0, hidden}, out.gate));
  ML_RETURN_IF_ERROR(bind_matrix(in.up, width, {0, hidden}, out.up));
  return bind_matrix(in.down, {0, hidden}, width, out.down);
}

Status bind_layer(const m3::ModelConfig& config, const m3::RankShape& shape,
                  const m3::LayerWeights& in, std::int64_t id, LayerInput& out) {
  ml_layer_spec& spec = out.spec;
  spec.size = sizeof spec;
  spec.layer_id = static_cast<std::int32_t>(id);
  ML_RETURN_IF_ERROR(bind_vector(in.input_norm, spec.input_norm));
  ML_RETURN_IF_ERROR(bind_vector(in.post_norm, spec.post_norm));
  ML_RETURN_IF_ERROR(bind_vector(in.q_norm, spec.q_norm));
  ML_RETURN_IF_ERROR(bind_vector(in.k_norm, spec.k_norm));
  ML_RETURN_IF_ERROR(bind_vector(in.index_q_norm, spec.index_q_norm));
  ML_RETURN_IF_ERROR(bind_vector(in.index_k_norm, spec.index_k_norm));
  ML_RETURN_IF_ERROR(bind_vector(in.router_bias, spec.router_bias));
  const Slice hidden{0, config.hidden_size};
  const Slice q{shape.first_head * config.head_dim, shape.heads * config.head_dim};
  const Slice kv{shape.first_kv_head * config.head_dim, shape.kv_heads * config.head_dim};
  const Slice index{shape.first_kv_head * config.index_dim, shape.kv_heads * config.index_dim};
  ML_RETURN_IF_ERROR(bind_matrix(in.q, q, hidden, spec.q));
  ML_RETURN_IF_ERROR(bind_matrix(in.k, kv, hidden, spec.k));
  ML_RETURN_IF_ERROR(bind_matrix(in.v, kv, hidden, spec.v));
  ML_RETURN_IF_ERROR(bind_matrix(in.index_q, index, hidden, spec.index_q));
  ML_RETURN_IF_ERROR(bind_matrix(in.index_k, {0, config.index_dim}, hidden, spec.index_k));
  ML_RETURN_IF_ERROR(bind_matrix(in.o, hidden, q, spec.o));
  ML_RETURN_IF_ERROR(bind_matrix(in.router, {0, config.num_experts}, hidden, spec.router));
  const Slice width{shape.rank * shape.expert_width, shape.expert_width};
  for (const m3::MlpWeights& expert : in.experts) {
    ml_mlp bound;
    ML_RETURN_IF_ERROR(bind_mlp(expert, config.hidden_size, width, bound));
    out.experts.push_back(bound);
  }
  if (in.shared.gate.empty()) return {};
  return bind_mlp(in.shared, config.hidden_size,
                  {shape.rank * shape.shared_width, shape.shared_width}, spec.shared);
}

}  // namespace

Result<LibraryInput> bind_library(const m3::ModelConfig& config, const m3::ModelWeights& weights,
                                  std::int64_t rank, std::int64_t size) {
  ML_ASSIGN_OR_RETURN(const m3::RankShape shape, m3::rank_shape(config, rank, size));
  LibraryInput input;
  ml_model& model = input.model;
  model.size = sizeof model;
  const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  model.num_layers = narrow(config.num_layers);
  model.hidden_size = narrow(config.hidden_size);
  model.num_heads = narrow(config.num_heads);
  model.num_kv_heads = narrow(config.num_kv_heads);
  model.head_dim = narrow(config.head_dim);
  model.rotary_dim = narrow(config.rotary_dim);
  model.index_heads = narrow(config.index_heads);
  model.index_dim = narrow(config.index_dim);
  model.block_size = narrow(config.block_size);
  model.topk_blocks = narrow(config.topk_blocks);
  model.init_blocks = narrow(config.init_blocks);
  model.local_blocks = narrow(config.local_blocks);
  model.num_experts = narrow(config.num_experts);
  model.experts_per_token = narrow(config.experts_per_token);
  model.expert_width = narrow(config.expert_width);
  model.shared_width = narrow(config.shared_width);
  model.max_positions = narrow(config.max_positions);
  model.rope_theta = config.rope_theta;
  model.rms_eps = config.rms_eps;
  model.routed_scale = config.routed_scale;
  model.shared_weight = config.shared_weight;
  model.softmax_scale = config.softmax_scale;
  model.swiglu_alpha = config.swiglu_alpha;
  model.swiglu_limit = config.swiglu_limit;
  model.swiglu_beta = config.swiglu_beta;
  input.context.size = sizeof input.context;
  input.context.rank = narrow(rank);
  input.context.tp_size = narrow(size);
  input.context.device_type = ML_DEVICE_CPU;
  for (std::size_t i = 0; i < config.layers.size() && i < weights.layers.size(); ++i) {
    if (!config.layers[i].sparse_attention || !config.layers[i].moe) continue;
    input.layers.emplace_back();
    ML_RETURN_IF_ERROR(bind_layer(config, shape, weights.layers[i], static_cast<std::int64_t>(i),
                                  input.layers.back()));
  }
  if (input.layers.empty()) {
    return Status(Code::kUnsupported, "layers", "none has sparse attention and experts");
  }
  return input;
}

}  // namespace monolayer::mono

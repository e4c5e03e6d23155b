// Tensors of layers and caches, checked and turned into the executor's views.
#include <algorithm>
#include <cmath>
#include <map>

#include "mono/library_spec.h"

namespace monolayer::mono {
namespace {

using std::to_string;

constexpr std::int64_t kGroup = 32;  // values that share an E8M0 scale

// What every check of one rank needs.
struct Context {
  const DeviceTraits& device;
  std::int32_t device_index;
  const m3::ModelConfig& config;
  m3::RankShape shape;
};

std::string layer_subject(std::int64_t layer_id, const std::string& tensor) {
  return "layer " + to_string(layer_id) + ", " + tensor;
}

Status check_vector(const Context& context, const ml_tensor& tensor, const std::string& subject,
                    std::int32_t dtype, std::int64_t size) {
  TensorRule rule;
  rule.subject = subject;
  rule.dtypes = {dtype};
  rule.shape = {size};
  rule.device_index = context.device_index;
  return check_tensor(tensor, context.device, rule);
}

WeightLayout layout_of(const ml_matrix& matrix) {
  switch (matrix.weight.dtype) {
    case ML_F32:
      return WeightLayout::kF32;
    case ML_BF16:
      return WeightLayout::kBF16;
    case ML_E2M1X2:
      return WeightLayout::kMXFP4;
    default:
      return matrix.scale.dtype == ML_E8M0 ? WeightLayout::kMXFP8 : WeightLayout::kE4M3;
  }
}

// `count` > 0: a stack of that many matrices. The views of entry e begin e strides further.
struct MatrixRule {
  std::int64_t rows, cols;
  bool router = false;
  std::int64_t count = 0;
};

Status check_matrix_tensor(const Context& context, const ml_tensor& tensor,
                           const std::string& subject, const MatrixRule& rule, std::int32_t dtype,
                           std::int64_t cols) {
  const bool vector = cols == 0;
  TensorRule tensor_rule;
  tensor_rule.subject = subject;
  tensor_rule.dtypes = {dtype};
  tensor_rule.device_index = context.device_index;
  if (rule.count > 0) {
    tensor_rule.shape =
        vector ? Numbers{rule.count, rule.rows} : Numbers{rule.count, rule.rows, cols};
  } else {
    tensor_rule.shape = vector ? Numbers{rule.rows} : Numbers{rule.rows, cols};
  }
  return check_tensor(tensor, context.device, tensor_rule);
}

Status check_matrix(const Context& context, const ml_matrix& matrix, const std::string& subject,
                    const MatrixRule& rule) {
  const std::string weight = subject + ".weight", scale = subject + ".scale";
  if (matrix.size != sizeof(ml_matrix)) {
    return {Code::kInvalidArgument, subject,
            "size field is " + to_string(matrix.size) + ", this library's ml_matrix has " +
                to_string(sizeof(ml_matrix))};
  }
  const std::int32_t dtype = matrix.weight.dtype;
  const bool known =
      dtype == ML_BF16 || (rule.router ? dtype == ML_F32 : dtype == ML_E4M3 || dtype == ML_E2M1X2);
  if (present(matrix.weight) && matrix.weight.size == sizeof(ml_tensor) && !known) {
    return {Code::kInvalidArgument, weight,
            "dtype " + std::string(abi_dtype_name(dtype)) + " (" + to_string(dtype) +
                "), accepted: " + (rule.router ? "BF16 or F32" : "BF16, E4M3 or E2M1x2")};
  }
  const std::int64_t stored = dtype == ML_E2M1X2 ? rule.cols / 2 : rule.cols;
  ML_RETURN_IF_ERROR(check_matrix_tensor(context, matrix.weight, weight, rule, dtype, stored));
  if (dtype == ML_BF16 || dtype == ML_F32) {
    if (!present(matrix.scale)) return {};
    return {Code::kInvalidArgument, scale,
            "present, " + std::string(abi_dtype_name(dtype)) + " weights have no scale"};
  }
  const bool per_channel = dtype == ML_E4M3 && matrix.scale.dtype == ML_F32;
  if (present(matrix.scale) && matrix.scale.size == sizeof(ml_tensor) && !per_channel &&
      matrix.scale.dtype != ML_E8M0) {
    return {Code::kInvalidArgument, scale,
            "dtype " + std::string(abi_dtype_name(matrix.scale.dtype)) + " (" +
                to_string(matrix.scale.dtype) + "), accepted: " +
                (dtype == ML_E4M3 ? "F32 per channel or E8M0 per 32 columns" : "E8M0")};
  }
  if (!per_channel && rule.cols % kGroup != 0) {
    return {Code::kUnsupported, weight,
            to_string(rule.cols) + " columns, MX formats need a multiple of " + to_string(kGroup)};
  }
  return check_matrix_tensor(context, matrix.scale, scale, rule, per_channel ? ML_F32 : ML_E8M0,
                             per_channel ? 0 : rule.cols / kGroup);
}

// Only of a checked matrix. `entry`: of a stack, else 0.
WeightView view(const ml_matrix& matrix, const MatrixRule& rule, std::int64_t entry = 0) {
  const int axis = rule.count > 0 ? 1 : 0;  // of rows
  WeightView out;
  out.layout = layout_of(matrix);
  out.rows = rule.rows;
  out.cols = rule.cols;
  const ml_tensor& weight = matrix.weight;
  const std::int64_t unit = abi_dtype_size(weight.dtype);
  const auto* data = static_cast<const std::byte*>(weight.data);
  out.data = data + (axis == 1 ? entry * weight.strides[0] * unit : 0);
  out.row_bytes = rule.rows > 1 ? weight.strides[axis] * unit : weight.shape[axis + 1] * unit;
  if (out.layout == WeightLayout::kF32 || out.layout == WeightLayout::kBF16) return out;
  const ml_tensor& scale = matrix.scale;
  const std::int64_t scale_unit = abi_dtype_size(scale.dtype);
  const auto* scales = static_cast<const std::byte*>(scale.data);
  out.scales = scales + (axis == 1 ? entry * scale.strides[0] * scale_unit : 0);
  if (out.layout != WeightLayout::kE4M3) {
    out.scale_row_bytes = rule.rows > 1 ? scale.strides[axis] : scale.shape[axis + 1];
  }
  return out;
}

bool any_given(const ml_mlp& mlp) {
  return mlp.gate.weight.data != nullptr || mlp.up.weight.data != nullptr ||
         mlp.down.weight.data != nullptr;
}

Status check_mlp(const Context& context, const ml_mlp& mlp, const std::string& subject,
                 std::int64_t width, std::int64_t count) {
  const std::int64_t hidden = context.config.hidden_size;
  const MatrixRule in{width, hidden, false, count}, out{hidden, width, false, count};
  ML_RETURN_IF_ERROR(check_matrix(context, mlp.gate, subject + ".gate", in));
  ML_RETURN_IF_ERROR(check_matrix(context, mlp.up, subject + ".up", in));
  return check_matrix(context, mlp.down, subject + ".down", out);
}

MlpWeightView view_mlp(const Context& context, const ml_mlp& mlp, std::int64_t width,
                       std::int64_t count, std::int64_t entry) {
  const std::int64_t hidden = context.config.hidden_size;
  const MatrixRule in{width, hidden, false, count}, out{hidden, width, false, count};
  return {view(mlp.gate, in, entry), view(mlp.up, in, entry), view(mlp.down, out, entry)};
}

Status take_experts(const Context& context, const LayerInput& layer, LayerView& out) {
  const std::int64_t id = layer.spec.layer_id, experts = context.config.num_experts;
  const std::int64_t width = context.shape.expert_width;
  const bool stacked = any_given(layer.spec.stacked);
  if (stacked == !layer.experts.empty()) {
    return {Code::kInvalidArgument, layer_subject(id, "experts"),
            stacked ? "given twice, as a stack and as an array" : "missing"};
  }
  const std::int64_t count = stacked ? layer.spec.stacked.gate.weight.shape[0]
                                     : static_cast<std::int64_t>(layer.experts.size());
  const bool fused = count == experts + 1;
  if (count != experts && !fused) {
    return {Code::kInvalidArgument, layer_subject(id, "experts"),
            to_string(count) + " experts, must be " + to_string(experts) + ", or " +
                to_string(experts + 1) + " with the shared expert last"};
  }
  if (fused && context.config.shared_width != context.config.expert_width) {
    return {Code::kInvalidArgument, layer_subject(id, "experts"),
            "the table of " + to_string(count) + " holds a shared expert of width " +
                to_string(context.config.expert_width) + ", model.shared_width is " +
                to_string(context.config.shared_width)};
  }
  std::vector<MlpWeightView> table;
  if (stacked) {
    ML_RETURN_IF_ERROR(
        check_mlp(context, layer.spec.stacked, layer_subject(id, "experts"), width, count));
    for (std::int64_t e = 0; e < count; ++e) {
      table.push_back(view_mlp(context, layer.spec.stacked, width, count, e));
    }
  } else {
    for (std::int64_t e = 0; e < count; ++e) {
      const ml_mlp& expert = layer.experts[static_cast<std::size_t>(e)];
      ML_RETURN_IF_ERROR(
          check_mlp(context, expert, layer_subject(id, "experts[" + to_string(e) + "]"), width, 0));
      table.push_back(view_mlp(context, expert, width, 0, 0));
    }
  }
  const bool separate = any_given(layer.spec.shared);
  const bool wanted = context.config.shared_width > 0;
  if (separate && (fused || !wanted)) {
    return {Code::kInvalidArgument, layer_subject(id, "shared"),
            fused ? "given although the expert table holds the shared expert"
                  : "given although model.shared_width is 0"};
  }
  if (wanted && !fused && !separate) {
    return {Code::kInvalidArgument, layer_subject(id, "shared"),
            "missing: model.shared_width is " + to_string(context.config.shared_width) +
                " and the expert table has no row for it"};
  }
  if (fused) {
    out.shared = table.back();
    table.pop_back();
  } else if (separate) {
    ML_RETURN_IF_ERROR(check_mlp(context, layer.spec.shared, layer_subject(id, "shared"),
                                 context.shape.shared_width, 0));
    out.shared = view_mlp(context, layer.spec.shared, context.shape.shared_width, 0, 0);
  }
  out.experts = std::move(table);
  return {};
}

Status take_layer(const Context& context, const LayerInput& layer, LayerView& out) {
  const m3::ModelConfig& c = context.config;
  const ml_layer_spec& spec = layer.spec;
  const auto subject = [&](const char* tensor) { return layer_subject(spec.layer_id, tensor); };
  struct VectorRule {
    const char* name;
    const ml_tensor* tensor;
    std::int64_t size;
    const bf16_t** out;
  };
  const VectorRule vectors[] = {
      {"input_norm", &spec.input_norm, c.hidden_size, &out.input_norm},
      {"post_norm", &spec.post_norm, c.hidden_size, &out.post_norm},
      {"q_norm", &spec.q_norm, c.head_dim, &out.q_norm},
      {"k_norm", &spec.k_norm, c.head_dim, &out.k_norm},
      {"index_q_norm", &spec.index_q_norm, c.index_dim, &out.index_q_norm},
      {"index_k_norm", &spec.index_k_norm, c.index_dim, &out.index_k_norm},
  };
  for (const VectorRule& v : vectors) {
    ML_RETURN_IF_ERROR(check_vector(context, *v.tensor, subject(v.name), ML_BF16, v.size));
    *v.out = static_cast<const bf16_t*>(v.tensor->data);
  }
  const std::int64_t q = context.shape.heads * c.head_dim;
  const std::int64_t kv = context.shape.kv_heads * c.head_dim;
  struct NamedMatrix {
    const char* name;
    const ml_matrix* matrix;
    MatrixRule rule;
    WeightView* out;
  };
  const NamedMatrix matrices[] = {
      {"q", &spec.q, {q, c.hidden_size}, &out.q},
      {"k", &spec.k, {kv, c.hidden_size}, &out.k},
      {"v", &spec.v, {kv, c.hidden_size}, &out.v},
      {"index_q",
       &spec.index_q,
       {context.shape.kv_heads * c.index_dim, c.hidden_size},
       &out.index_q},
      {"index_k", &spec.index_k, {c.index_dim, c.hidden_size}, &out.index_k},
      {"o", &spec.o, {c.hidden_size, q}, &out.o},
      {"router", &spec.router, {c.num_experts, c.hidden_size, true}, &out.router},
  };
  for (const NamedMatrix& m : matrices) {
    ML_RETURN_IF_ERROR(check_matrix(context, *m.matrix, subject(m.name), m.rule));
    *m.out = view(*m.matrix, m.rule);
  }
  if (present(spec.router_bias)) {
    ML_RETURN_IF_ERROR(
        check_vector(context, spec.router_bias, subject("router_bias"), ML_F32, c.num_experts));
    out.router_bias = static_cast<const float*>(spec.router_bias.data);
  }
  out.sparse = true;
  out.moe = true;
  return take_experts(context, layer, out);
}

Status check_scale(const std::string& subject, std::int32_t dtype, float scale) {
  if (!std::isfinite(scale) || scale <= 0) {
    return {Code::kInvalidArgument, subject,
            "is " + to_string(scale) + ", must be finite and positive"};
  }
  if (dtype == ML_BF16 && scale != 1) {
    return {Code::kInvalidArgument, subject,
            "is " + to_string(scale) + ", BF16 caches have a scale of 1"};
  }
  return {};
}

Status check_cache_tensor(const Context& context, const ml_tensor& tensor,
                          const std::string& subject, bool heads) {
  const m3::ModelConfig& c = context.config;
  TensorRule rule;
  rule.subject = subject;
  rule.dtypes = {ML_BF16, ML_E4M3};
  rule.role = ML_ROLE_CACHE;
  rule.device_index = context.device_index;
  rule.alignment = context.device.cache_alignment;
  if (heads) {
    rule.shape = {-1, context.shape.kv_heads, ML_BLOCK_TOKENS, c.head_dim};
    rule.packed = 3;
    ML_RETURN_IF_ERROR(check_tensor(tensor, context.device, rule));
  } else {
    rule.shape = {-1, ML_BLOCK_TOKENS, c.index_dim};
    rule.packed = 2;
    ML_RETURN_IF_ERROR(check_tensor(tensor, context.device, rule));
  }
  constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) / ML_BLOCK_TOKENS;
  if (tensor.shape[0] > kMaxBlocks) {
    return {Code::kInvalidArgument, subject,
            to_string(tensor.shape[0]) + " blocks of 128 slots, slots must stay below 2^31 (" +
                to_string(kMaxBlocks) + " blocks)"};
  }
  return {};
}

Status take_cache(const Context& context, const ml_cache_spec& spec, CacheView& out) {
  const auto subject = [&](const char* tensor) { return layer_subject(spec.layer_id, tensor); };
  ML_RETURN_IF_ERROR(check_cache_tensor(context, spec.k, subject("k cache"), true));
  ML_RETURN_IF_ERROR(check_cache_tensor(context, spec.v, subject("v cache"), true));
  ML_RETURN_IF_ERROR(check_cache_tensor(context, spec.index, subject("index cache"), false));
  if (spec.k.dtype != spec.v.dtype || spec.k.shape[0] != spec.v.shape[0] ||
      (spec.k.shape[0] > 1 && spec.k.strides[0] != spec.v.strides[0])) {
    return {Code::kInvalidArgument, subject("v cache"),
            std::string(abi_dtype_name(spec.v.dtype)) + " " + shape_text(spec.v) +
                " with block stride " + to_string(spec.v.strides[0]) + ", the k cache is " +
                std::string(abi_dtype_name(spec.k.dtype)) + " " + shape_text(spec.k) +
                " with block stride " + to_string(spec.k.strides[0])};
  }
  ML_RETURN_IF_ERROR(check_scale(subject("k_scale"), spec.k.dtype, spec.k_scale));
  ML_RETURN_IF_ERROR(check_scale(subject("v_scale"), spec.v.dtype, spec.v_scale));
  ML_RETURN_IF_ERROR(check_scale(subject("index_scale"), spec.index.dtype, spec.index_scale));
  const std::int64_t longest = std::min<std::int64_t>(ML_MAX_CONTEXT, context.config.max_positions);
  if (spec.max_context < 1 || spec.max_context > longest) {
    return {Code::kInvalidArgument, subject("max_context"),
            "is " + to_string(spec.max_context) + ", must be in [1, " + to_string(longest) + "]"};
  }
  const std::int64_t unit = abi_dtype_size(spec.k.dtype);
  const std::int64_t index_unit = abi_dtype_size(spec.index.dtype);
  out.kv = spec.k.dtype == ML_E4M3 ? DType::kE4M3 : DType::kBF16;
  out.index = spec.index.dtype == ML_E4M3 ? DType::kE4M3 : DType::kBF16;
  out.k_scale = spec.k_scale;
  out.v_scale = spec.v_scale;
  out.index_scale = spec.index_scale;
  out.k = static_cast<std::byte*>(spec.k.data);
  out.v = static_cast<std::byte*>(spec.v.data);
  out.index_keys = static_cast<std::byte*>(spec.index.data);
  out.token_bytes = context.config.head_dim * unit;
  out.head_bytes = ML_BLOCK_TOKENS * out.token_bytes;
  out.blocks = spec.k.shape[0];
  out.block_bytes =
      out.blocks > 1 ? spec.k.strides[0] * unit : context.shape.kv_heads * out.head_bytes;
  out.index_token_bytes = context.config.index_dim * index_unit;
  out.index_blocks = spec.index.shape[0];
  out.index_block_bytes = out.index_blocks > 1 ? spec.index.strides[0] * index_unit
                                               : ML_BLOCK_TOKENS * out.index_token_bytes;
  return {};
}

Status take_rotary(const Context& context, const ml_tensor& table, ExecutorConfig& out) {
  TensorRule rule;
  rule.subject = "model.cos_sin";
  rule.dtypes = {ML_BF16, ML_F32};
  rule.shape = {-1, context.config.rotary_dim};
  rule.device_index = context.device_index;
  ML_RETURN_IF_ERROR(check_tensor(table, context.device, rule));
  if (table.shape[0] < out.max_context) {
    return {Code::kInvalidArgument, rule.subject,
            "shape " + shape_text(table) + ", max_context is " + to_string(out.max_context)};
  }
  const std::int64_t row = table.shape[0] > 1 ? table.strides[0] : table.shape[1];
  out.rotary = {.data = table.data,
                .dtype = table.dtype == ML_F32 ? DType::kF32 : DType::kBF16,
                .positions = table.shape[0],
                .row_bytes = row * abi_dtype_size(table.dtype)};
  return {};
}

// Caches of a deployment share types, scales' presence, context and capacity: one step addresses
// them all with the same block ids.
Status check_alike(const ml_cache_spec& first, const ml_cache_spec& spec) {
  struct Field {
    const char* name;
    std::int64_t value, expected;
  };
  const Field fields[] = {
      {"k cache dtype", spec.k.dtype, first.k.dtype},
      {"index cache dtype", spec.index.dtype, first.index.dtype},
      {"k cache blocks", spec.k.shape[0], first.k.shape[0]},
      {"index cache blocks", spec.index.shape[0], first.index.shape[0]},
      {"max_context", spec.max_context, first.max_context},
  };
  for (const Field& field : fields) {
    if (field.value == field.expected) continue;
    return {Code::kInvalidArgument, layer_subject(spec.layer_id, field.name),
            "is " + to_string(field.value) + ", layer " + to_string(first.layer_id) + " has " +
                to_string(field.expected)};
  }
  return {};
}

// Two caches at one address would overwrite each other.
Status check_distinct(const std::vector<ml_cache_spec>& caches) {
  std::map<const void*, std::string> seen;
  for (const ml_cache_spec& spec : caches) {
    const std::pair<const char*, const ml_tensor*> tensors[] = {
        {"k cache", &spec.k}, {"v cache", &spec.v}, {"index cache", &spec.index}};
    for (const auto& [name, tensor] : tensors) {
      const std::string subject = layer_subject(spec.layer_id, name);
      const auto [at, inserted] = seen.emplace(tensor->data, subject);
      if (!inserted) return {Code::kInvalidArgument, subject, "same memory as " + at->second};
    }
  }
  return {};
}

Status check_ids(const LibraryInput& input) {
  const std::size_t count = input.layers.size();
  if (input.caches.size() != count) {
    return {Code::kInvalidArgument, "caches",
            to_string(input.caches.size()) + " cache specs for " + to_string(count) + " layers"};
  }
  std::int64_t previous = -1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t id = input.layers[i].spec.layer_id;
    if (id < 0 || id >= input.model.num_layers) {
      return {
          Code::kInvalidArgument, "layers[" + to_string(i) + "].layer_id",
          "is " + to_string(id) + ", must be in [0, " + to_string(input.model.num_layers) + ")"};
    }
    if (id <= previous) {
      return {Code::kInvalidArgument, "layers[" + to_string(i) + "].layer_id",
              "is " + to_string(id) + (id == previous ? ", a duplicate" : "") + ", must be above " +
                  to_string(previous)};
    }
    if (input.caches[i].layer_id != id) {
      return {
          Code::kInvalidArgument, "caches[" + to_string(i) + "].layer_id",
          "is " + to_string(input.caches[i].layer_id) + ", the layer there is " + to_string(id)};
    }
    previous = id;
  }
  return {};
}

}  // namespace

Result<ExecutorConfig> check_input(const LibraryInput& input, const DeviceTraits& device) {
  ML_ASSIGN_OR_RETURN(const m3::ModelConfig config, check_model(input.model));
  ML_ASSIGN_OR_RETURN(const m3::RankShape shape, check_context(input.context, config, device));
  ML_RETURN_IF_ERROR(check_ids(input));
  const Context context{device, input.context.device_index, config, shape};
  ExecutorConfig out;
  out.shape = config;
  out.shape.num_layers = static_cast<std::int64_t>(input.layers.size());
  out.shape.num_heads = shape.heads;
  out.shape.num_kv_heads = shape.kv_heads;
  out.shape.index_heads = shape.kv_heads;
  out.shape.expert_width = shape.expert_width;
  out.shape.shared_width = shape.shared_width;
  out.shape.layers.assign(input.layers.size(), {.sparse_attention = true, .moe = true});
  out.layers.resize(input.layers.size());
  out.caches.resize(input.layers.size());
  for (std::size_t i = 0; i < input.layers.size(); ++i) {
    ML_RETURN_IF_ERROR(take_layer(context, input.layers[i], out.layers[i]));
    out.shape.routing_bias |= out.layers[i].router_bias != nullptr;
  }
  for (std::size_t i = 0; i < input.caches.size(); ++i) {
    ML_RETURN_IF_ERROR(take_cache(context, input.caches[i], out.caches[i]));
    ML_RETURN_IF_ERROR(check_alike(input.caches.front(), input.caches[i]));
  }
  ML_RETURN_IF_ERROR(check_distinct(input.caches));
  out.max_context = input.caches.front().max_context;
  if (present(input.model.cos_sin)) {
    ML_RETURN_IF_ERROR(take_rotary(context, input.model.cos_sin, out));
  }
  return out;
}

}  // namespace monolayer::mono

// Model constants and place in the group.
#include <cmath>
#include <cstring>

#include "mono/library_spec.h"

namespace monolayer::mono {
namespace {

using std::to_string;

// Copies a versioned struct of the caller: its `size` field says how much of it exists.
template <typename T>
Status read_struct(const T* from, const std::string& subject, std::uint32_t expected, T& out) {
  std::uint32_t size = 0;
  std::memcpy(&size, from, sizeof size);
  if (size < sizeof(std::uint32_t) || size > sizeof(T)) {
    return {Code::kInvalidArgument, subject,
            "size field is " + to_string(size) + ", this library knows structs of up to " +
                to_string(sizeof(T)) + " bytes"};
  }
  if (size % alignof(T) != 0) {  // it would end within a field
    return {
        Code::kInvalidArgument, subject,
        "size field is " + to_string(size) + ", must be a multiple of " + to_string(alignof(T))};
  }
  if (expected != 0 && size != expected) {
    return {Code::kInvalidArgument, subject,
            "size field is " + to_string(size) + ", the first entry of the array has " +
                to_string(expected)};
  }
  out = T{};
  std::memcpy(&out, from, size);
  out.size = sizeof(T);
  return {};
}

template <typename T>
Status read_array(const T* from, std::int64_t count, const char* what, std::vector<T>& out) {
  if (from == nullptr || count < 1) {
    return {Code::kInvalidArgument, what,
            "count " + to_string(count) + (from == nullptr ? " and a null pointer" : "") +
                ", at least 1 is needed"};
  }
  std::uint32_t stride = 0;
  std::memcpy(&stride, from, sizeof stride);
  const auto* bytes = reinterpret_cast<const std::byte*>(from);
  out.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto* entry = reinterpret_cast<const T*>(bytes + i * stride);
    ML_RETURN_IF_ERROR(read_struct(entry, std::string(what) + "[" + to_string(i) + "]",
                                   i == 0 ? 0 : stride, out[static_cast<std::size_t>(i)]));
  }
  return {};
}

struct IntRule {
  const char* field;
  std::int64_t value, low, high;
};

Status check_range(const IntRule& rule) {
  if (rule.value >= rule.low && rule.value <= rule.high) return {};
  return {Code::kInvalidArgument, std::string("model.") + rule.field,
          "is " + to_string(rule.value) + ", must be in [" + to_string(rule.low) + ", " +
              to_string(rule.high) + "]"};
}

Status check_float(const char* field, double value, bool positive) {
  if (std::isfinite(value) && (!positive || value > 0)) return {};
  return {Code::kInvalidArgument, std::string("model.") + field,
          "is " + to_string(value) + ", must be finite" + (positive ? " and positive" : "")};
}

Status check_divides(const char* field, std::int64_t value, const char* of, std::int64_t whole) {
  if (whole % value == 0) return {};
  return {Code::kInvalidArgument, std::string("model.") + field,
          "is " + to_string(value) + ", must divide " + of + " " + to_string(whole)};
}

}  // namespace

Result<LibraryInput> read_input(const ml_model* model, const ml_layer_spec* layers,
                                std::int64_t layer_count, const ml_cache_spec* caches,
                                std::int64_t cache_count, const ml_tp_context* context) {
  LibraryInput input;
  if (model == nullptr) return Status(Code::kInvalidArgument, "model", "null pointer");
  if (context == nullptr) return Status(Code::kInvalidArgument, "context", "null pointer");
  ML_RETURN_IF_ERROR(read_struct(model, "model", 0, input.model));
  ML_RETURN_IF_ERROR(read_struct(context, "context", 0, input.context));
  std::vector<ml_layer_spec> specs;
  ML_RETURN_IF_ERROR(read_array(layers, layer_count, "layers", specs));
  ML_RETURN_IF_ERROR(read_array(caches, cache_count, "caches", input.caches));
  for (const ml_layer_spec& spec : specs) {
    LayerInput layer{spec, {}};
    if (spec.experts != nullptr) {
      ML_RETURN_IF_ERROR(read_array(spec.experts, spec.expert_count, "experts", layer.experts));
    }
    layer.spec.experts = nullptr;
    input.layers.push_back(std::move(layer));
  }
  return input;
}

Result<m3::ModelConfig> check_model(const ml_model& model) {
  constexpr std::int64_t kWide = 1 << 20;
  const IntRule rules[] = {
      {"num_layers", model.num_layers, 1, 65536},
      {"hidden_size", model.hidden_size, 1, kWide},
      {"num_heads", model.num_heads, 1, 4096},
      {"num_kv_heads", model.num_kv_heads, 1, model.num_heads},
      {"head_dim", model.head_dim, 2, 4096},
      {"rotary_dim", model.rotary_dim, 2, model.head_dim},
      {"index_heads", model.index_heads, 1, 4096},
      {"index_dim", model.index_dim, model.rotary_dim, 4096},
      {"block_size", model.block_size, 1, ML_BLOCK_TOKENS},
      {"topk_blocks", model.topk_blocks, 1, kWide},
      {"init_blocks", model.init_blocks, 0, model.topk_blocks},
      {"local_blocks", model.local_blocks, 0, model.topk_blocks},
      {"num_experts", model.num_experts, 1, 65536},
      {"experts_per_token", model.experts_per_token, 1, model.num_experts},
      {"expert_width", model.expert_width, 1, kWide},
      {"shared_width", model.shared_width, 0, kWide},
      {"max_positions", model.max_positions, 1, std::int64_t{1} << 30},
  };
  for (const IntRule& rule : rules) ML_RETURN_IF_ERROR(check_range(rule));
  ML_RETURN_IF_ERROR(
      check_divides("num_kv_heads", model.num_kv_heads, "num_heads", model.num_heads));
  ML_RETURN_IF_ERROR(check_divides("block_size", model.block_size, "a page of", ML_BLOCK_TOKENS));
  if (model.rotary_dim % 2 != 0) {
    return Status(Code::kInvalidArgument, "model.rotary_dim",
                  "is " + to_string(model.rotary_dim) + ", must be even");
  }
  if (model.init_blocks + model.local_blocks > model.topk_blocks) {
    return Status(Code::kInvalidArgument, "model.local_blocks",
                  "init_blocks + local_blocks is " +
                      to_string(model.init_blocks + model.local_blocks) + ", topk_blocks is " +
                      to_string(model.topk_blocks));
  }
  if (model.index_heads != model.num_kv_heads) {
    return Status(Code::kUnsupported, "model.index_heads",
                  "is " + to_string(model.index_heads) + ", must equal num_kv_heads " +
                      to_string(model.num_kv_heads));
  }
  ML_RETURN_IF_ERROR(check_float("rope_theta", model.rope_theta, true));
  ML_RETURN_IF_ERROR(check_float("rms_eps", model.rms_eps, true));
  ML_RETURN_IF_ERROR(check_float("routed_scale", model.routed_scale, false));
  ML_RETURN_IF_ERROR(check_float("swiglu_alpha", model.swiglu_alpha, false));
  ML_RETURN_IF_ERROR(check_float("swiglu_limit", model.swiglu_limit, true));
  ML_RETURN_IF_ERROR(check_float("swiglu_beta", model.swiglu_beta, false));
  ML_RETURN_IF_ERROR(check_float("shared_weight", model.shared_weight, false));
  ML_RETURN_IF_ERROR(check_float("softmax_scale", model.softmax_scale, model.softmax_scale != 0));

  m3::ModelConfig config;
  config.hidden_size = model.hidden_size;
  config.num_layers = model.num_layers;
  config.num_heads = model.num_heads;
  config.num_kv_heads = model.num_kv_heads;
  config.head_dim = model.head_dim;
  config.rotary_dim = model.rotary_dim;
  config.rope_theta = model.rope_theta;
  config.max_positions = model.max_positions;
  config.rms_eps = model.rms_eps;
  config.expert_width = model.expert_width;
  config.shared_width = model.shared_width;
  config.num_experts = model.num_experts;
  config.experts_per_token = model.experts_per_token;
  config.routed_scale = model.routed_scale;
  if (model.shared_weight != 0) config.shared_weight = model.shared_weight;
  config.softmax_scale = model.softmax_scale;
  config.swiglu_alpha = model.swiglu_alpha;
  config.swiglu_limit = model.swiglu_limit;
  config.swiglu_beta = model.swiglu_beta;
  config.index_heads = model.index_heads;
  config.index_dim = model.index_dim;
  config.block_size = model.block_size;
  config.topk_blocks = model.topk_blocks;
  config.init_blocks = model.init_blocks;
  config.local_blocks = model.local_blocks;
  return config;
}

Result<m3::RankShape> check_context(const ml_tp_context& context, const m3::ModelConfig& config,
                                    const DeviceTraits& device) {
  ML_ASSIGN_OR_RETURN(const m3::RankShape shape,
                      m3::rank_shape(config, context.rank, context.tp_size));
  if (context.device_type != device.device_type || context.device_index < 0) {
    return Status(Code::kUnsupported, "context.device_type",
                  "device " + to_string(context.device_type) + ":" +
                      to_string(context.device_index) + ", this backend runs on " +
                      std::string(device.name));
  }
  if (context.worker_threads < 0 || context.worker_threads > 4096) {
    return Status(Code::kInvalidArgument, "context.worker_threads",
                  "is " + to_string(context.worker_threads) + ", must be in [0, 4096]");
  }
  return shape;
}

}  // namespace monolayer::mono

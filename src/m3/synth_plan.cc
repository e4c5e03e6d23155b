#include "m3/synth_plan.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/quantized_tensor.h"

namespace monolayer::m3 {
namespace {

// Appends the tensors of a model in order, with names, shapes and formats.
class Planner {
 public:
  Planner(const ModelConfig& config, const PartFormats& formats, bool flat)
      : config_(config),
        formats_(formats),
        prefix_(flat ? "model." : "language_model.model."),
        head_(flat ? "lm_head" : "language_model.lm_head"),
        suffix_(all_mxfp8(formats) ? ".weight_scale_inv" : ".weight_scale") {}

  static bool all_mxfp8(const PartFormats& formats) {
    return formats.attention == WeightFormat::kMXFP8 && formats.dense == WeightFormat::kMXFP8 &&
           formats.experts == WeightFormat::kMXFP8;
  }

  Result<std::vector<PlannedTensor>> plan() {
    matrix(Role::kEmbed, prefix_ + "embed_tokens", config_.vocab_size, config_.hidden_size);
    for (layer_ = 0; layer_ < config_.num_layers; ++layer_) {
      attention();
      if (config_.layers[static_cast<std::size_t>(layer_)].moe) {
        moe();
      } else {
        const std::string mlp = at("mlp.");
        matrix(Role::kDenseGate, mlp + "gate_proj", config_.dense_width, config_.hidden_size);
        matrix(Role::kDenseUp, mlp + "up_proj", config_.dense_width, config_.hidden_size);
        matrix(Role::kDenseDown, mlp + "down_proj", config_.hidden_size, config_.dense_width);
      }
    }
    layer_ = -1;
    norm(Role::kFinalNorm, prefix_ + "norm", config_.hidden_size);
    if (!config_.tie_word_embeddings)
      matrix(Role::kHead, head_, config_.vocab_size, config_.hidden_size);
    if (!error_.ok()) return error_;
    return std::move(tensors_);
  }

 private:
  std::string at(const char* rest) const {
    return prefix_ + "layers." + std::to_string(layer_) + "." + rest;
  }

  void attention() {
    const std::int64_t hidden = config_.hidden_size;
    norm(Role::kInputNorm, at("input_layernorm"), hidden);
    const std::string attn = at("self_attn.");
    matrix(Role::kQ, attn + "q_proj", config_.q_width(), hidden);
    matrix(Role::kK, attn + "k_proj", config_.kv_width(), hidden);
    matrix(Role::kV, attn + "v_proj", config_.kv_width(), hidden);
    matrix(Role::kO, attn + "o_proj", hidden, config_.q_width());
    norm(Role::kQNorm, attn + "q_norm", config_.head_dim);
    norm(Role::kKNorm, attn + "k_norm", config_.head_dim);
    if (config_.layers[static_cast<std::size_t>(layer_)].sparse_attention) {
      matrix(Role::kIndexQ, attn + "index_q_proj", config_.index_width(), hidden);
      matrix(Role::kIndexK, attn + "index_k_proj", config_.index_dim, hidden);
      norm(Role::kIndexQNorm, attn + "index_q_norm", config_.index_dim);
      norm(Role::kIndexKNorm, attn + "index_k_norm", config_.index_dim);
    }
    norm(Role::kPostNorm, at("post_attention_layernorm"), hidden);
  }

  void moe() {
    const std::int64_t hidden = config_.hidden_size;
    const std::string moe = at("block_sparse_moe.");
    matrix(Role::kRouter, moe + "gate", config_.num_experts, hidden).plain_dtype = DType::kF32;
    if (config_.routing_bias) {
      PlannedTensor& bias =
          norm(Role::kRouterBias, moe + "e_score_correction_bias", config_.num_experts);
      bias.weight = bias.module;
      bias.plain_dtype = DType::kF32;
    }
    for (expert_ = 0; expert_ < config_.num_experts; ++expert_) {
      const std::string expert = moe + "experts." + std::to_string(expert_) + ".";
      matrix(Role::kExpertGate, expert + "w1", config_.expert_width, hidden);
      matrix(Role::kExpertUp, expert + "w3", config_.expert_width, hidden);
      matrix(Role::kExpertDown, expert + "w2", hidden, config_.expert_width);
    }
    expert_ = -1;
    if (config_.shared_width == 0) return;
    const std::string shared = moe + "shared_experts.";
    matrix(Role::kSharedGate, shared + "gate_proj", config_.shared_width, hidden);
    matrix(Role::kSharedUp, shared + "up_proj", config_.shared_width, hidden);
    matrix(Role::kSharedDown, shared + "down_proj", hidden, config_.shared_width);
  }

  PlannedTensor& add(Role role, std::string module, std::int64_t rows, std::int64_t cols) {
    PlannedTensor& tensor = tensors_.emplace_back();
    tensor.role = role;
    tensor.layer = layer_;
    tensor.expert = expert_;
    tensor.weight = module + ".weight";
    tensor.module = std::move(module);
    tensor.rows = rows;
    tensor.cols = cols;
    return tensor;
  }

  PlannedTensor& norm(Role role, std::string module, std::int64_t size) {
    return add(role, std::move(module), 1, size);
  }

  PlannedTensor& matrix(Role role, std::string module, std::int64_t rows, std::int64_t cols) {
    PlannedTensor& tensor = add(role, std::move(module), rows, cols);
    tensor.format = formats_.of(part_of(role)).value_or(WeightFormat::kPlain);
    if (tensor.format != WeightFormat::kPlain) tensor.scale = tensor.module + suffix_;
    const bool mx = tensor.format == WeightFormat::kMXFP4 || tensor.format == WeightFormat::kMXFP8;
    if (mx && cols % kMxGroup != 0 && error_.ok())
      error_ = Status(Code::kInvalidArgument, tensor.weight,
                      "has rows of " + std::to_string(cols) + " values, " +
                          std::string(format_name(tensor.format)) + " needs a multiple of 32");
    return tensor;
  }

  const ModelConfig& config_;
  const PartFormats& formats_;
  const std::string prefix_, head_, suffix_;
  std::int64_t layer_ = -1, expert_ = -1;
  std::vector<PlannedTensor> tensors_;
  Status error_;
};

}  // namespace

Part part_of(Role role) {
  switch (role) {
    case Role::kQ:
    case Role::kK:
    case Role::kV:
    case Role::kO:
    case Role::kIndexQ:
    case Role::kIndexK:
      return Part::kAttention;
    case Role::kDenseGate:
    case Role::kDenseUp:
    case Role::kDenseDown:
      return Part::kDense;
    case Role::kExpertGate:
    case Role::kExpertUp:
    case Role::kExpertDown:
    case Role::kSharedGate:
    case Role::kSharedUp:
    case Role::kSharedDown:
      return Part::kExperts;
    default:
      return Part::kNone;
  }
}

std::optional<WeightFormat> PartFormats::of(Part part) const {
  switch (part) {
    case Part::kAttention:
      return attention;
    case Part::kDense:
      return dense;
    case Part::kExperts:
      return experts;
    default:
      return WeightFormat::kPlain;
  }
}

const std::vector<std::string>& format_names() {
  static const std::vector<std::string> names{"bf16",     "mxfp4",          "mxfp8",
                                              "ptpc_fp8", "mxfp4+ptpc_fp8", "mxfp4+mxfp8"};
  return names;
}

Result<PartFormats> parse_formats(const std::string& name) {
  constexpr auto kPlain = WeightFormat::kPlain;
  constexpr auto k4 = WeightFormat::kMXFP4;
  constexpr auto k8 = WeightFormat::kMXFP8;
  constexpr auto kRow = WeightFormat::kFP8PerChannel;
  if (name == "bf16") return PartFormats{kPlain, kPlain, kPlain};
  if (name == "mxfp4") return PartFormats{{}, {}, k4};
  if (name == "mxfp8") return PartFormats{k8, k8, k8};
  if (name == "ptpc_fp8") return PartFormats{kRow, {}, {}};
  if (name == "mxfp4+ptpc_fp8") return PartFormats{kRow, {}, k4};
  if (name == "mxfp4+mxfp8") return PartFormats{k8, k8, k4};
  std::string list;
  for (const std::string& known : format_names()) list += (list.empty() ? "" : ", ") + known;
  return Status(Code::kInvalidArgument, "--format", "'" + name + "' is not one of " + list);
}

bool PlannedTensor::vector() const {
  switch (role) {
    case Role::kFinalNorm:
    case Role::kInputNorm:
    case Role::kPostNorm:
    case Role::kQNorm:
    case Role::kKNorm:
    case Role::kIndexQNorm:
    case Role::kIndexKNorm:
    case Role::kRouterBias:
      return true;
    default:
      return false;
  }
}

std::int64_t PlannedTensor::row_bytes() const {
  switch (format) {
    case WeightFormat::kPlain:
      return cols * static_cast<std::int64_t>(dtype_size(plain_dtype));
    case WeightFormat::kMXFP4:
      return cols / 2;
    default:
      return cols;
  }
}

std::int64_t PlannedTensor::scale_row_bytes() const {
  switch (format) {
    case WeightFormat::kPlain:
      return 0;
    case WeightFormat::kFP8PerChannel:
      return 4;
    default:
      return cols / kMxGroup;
  }
}

void PlannedTensor::announce(std::vector<TensorPlan>& tensors) const {
  if (vector()) {
    tensors.push_back({weight, plain_dtype, {cols}});
    return;
  }
  switch (format) {
    case WeightFormat::kPlain:
      tensors.push_back({weight, plain_dtype, {rows, cols}});
      return;
    case WeightFormat::kMXFP4:
      tensors.push_back({weight, DType::kU8, {rows, cols / 2}});
      tensors.push_back({scale, DType::kU8, {rows, cols / kMxGroup}});
      return;
    case WeightFormat::kMXFP8:
      tensors.push_back({weight, DType::kE4M3, {rows, cols}});
      tensors.push_back({scale, DType::kU8, {rows, cols / kMxGroup}});
      return;
    case WeightFormat::kFP8PerChannel:
      tensors.push_back({weight, DType::kE4M3, {rows, cols}});
      tensors.push_back({scale, DType::kF32, {rows}});
      return;
  }
}

Result<std::vector<PlannedTensor>> plan_checkpoint(const ModelConfig& config,
                                                   const PartFormats& formats, bool flat) {
  return Planner(config, formats, flat).plan();
}

}  // namespace monolayer::m3

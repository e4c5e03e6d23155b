#include "m3/quantize_source.h"

#include <string>

namespace monolayer::m3 {
namespace {

QuantizedMatrix as_row(const TensorView& vector) {
  QuantizedMatrix matrix;
  matrix.weight = vector;
  matrix.rows = vector.empty() ? 0 : 1;
  matrix.cols = vector.empty() ? 0 : vector.shape.elements().value_or(0);
  return matrix;
}

const char* part_name(Part part) {
  return part == Part::kAttention ? "attention" : part == Part::kDense ? "dense MLP" : "experts";
}

// The format all matrices of one part share.
class PartFormat {
 public:
  explicit PartFormat(Part part) : part_(part) {}

  Status see(const QuantizedMatrix& matrix) {
    if (matrix.empty()) return ok_status();
    if (!format_) format_ = matrix.format;
    if (*format_ == matrix.format) return ok_status();
    return {Code::kUnsupported, std::string(matrix.weight.name),
            "is stored as " + std::string(format_name(matrix.format)) + ", other matrices of the " +
                part_name(part_) + " as " + std::string(format_name(*format_)) +
                "; name a format for this part"};
  }
  WeightFormat get() const { return format_.value_or(WeightFormat::kPlain); }

 private:
  Part part_;
  std::optional<WeightFormat> format_;
};

Status see_mlp(PartFormat& part, const MlpWeights& mlp) {
  ML_RETURN_IF_ERROR(part.see(mlp.gate));
  ML_RETURN_IF_ERROR(part.see(mlp.up));
  return part.see(mlp.down);
}

}  // namespace

QuantizedMatrix source_of(const ModelWeights& weights, const PlannedTensor& tensor) {
  switch (tensor.role) {
    case Role::kEmbed:
      return weights.embed;
    case Role::kHead:
      return weights.lm_head;
    case Role::kFinalNorm:
      return as_row(weights.final_norm);
    default:
      break;
  }
  const LayerWeights& layer = weights.layers[static_cast<std::size_t>(tensor.layer)];
  const auto expert = [&]() -> const MlpWeights& {
    return layer.experts[static_cast<std::size_t>(tensor.expert)];
  };
  switch (tensor.role) {
    case Role::kInputNorm:
      return as_row(layer.input_norm);
    case Role::kPostNorm:
      return as_row(layer.post_norm);
    case Role::kQ:
      return layer.q;
    case Role::kK:
      return layer.k;
    case Role::kV:
      return layer.v;
    case Role::kO:
      return layer.o;
    case Role::kQNorm:
      return as_row(layer.q_norm);
    case Role::kKNorm:
      return as_row(layer.k_norm);
    case Role::kIndexQ:
      return layer.index_q;
    case Role::kIndexK:
      return layer.index_k;
    case Role::kIndexQNorm:
      return as_row(layer.index_q_norm);
    case Role::kIndexKNorm:
      return as_row(layer.index_k_norm);
    case Role::kDenseGate:
      return layer.dense.gate;
    case Role::kDenseUp:
      return layer.dense.up;
    case Role::kDenseDown:
      return layer.dense.down;
    case Role::kRouter:
      return layer.router;
    case Role::kRouterBias:
      return as_row(layer.router_bias);
    case Role::kExpertGate:
      return expert().gate;
    case Role::kExpertUp:
      return expert().up;
    case Role::kExpertDown:
      return expert().down;
    case Role::kSharedGate:
      return layer.shared.gate;
    case Role::kSharedUp:
      return layer.shared.up;
    case Role::kSharedDown:
      return layer.shared.down;
    default:
      return {};
  }
}

Result<PartFormats> keep_stored_formats(const ModelWeights& weights, PartFormats wanted) {
  PartFormat attention(Part::kAttention);
  PartFormat dense(Part::kDense);
  PartFormat experts(Part::kExperts);
  for (const LayerWeights& layer : weights.layers) {
    if (!wanted.attention) {
      for (const QuantizedMatrix* matrix :
           {&layer.q, &layer.k, &layer.v, &layer.o, &layer.index_q, &layer.index_k})
        ML_RETURN_IF_ERROR(attention.see(*matrix));
    }
    if (!wanted.dense) ML_RETURN_IF_ERROR(see_mlp(dense, layer.dense));
    if (!wanted.experts) {
      for (const MlpWeights& expert : layer.experts) ML_RETURN_IF_ERROR(see_mlp(experts, expert));
      ML_RETURN_IF_ERROR(see_mlp(experts, layer.shared));
    }
  }
  if (!wanted.attention) wanted.attention = attention.get();
  if (!wanted.dense) wanted.dense = dense.get();
  if (!wanted.experts) wanted.experts = experts.get();
  return wanted;
}

}  // namespace monolayer::m3

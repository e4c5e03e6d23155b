#include "backend/cpu/model_view.h"

#include <cstring>
#include <string>

#include "backend/cpu/split.h"
#include "core/dtype.h"

namespace monolayer::cpu {
namespace {

using std::to_string;

Status unsupported(const TensorView& tensor, const std::string& message) {
  return {Code::kUnsupported, std::string(tensor.name), message};
}

Status view_matrix(const QuantizedMatrix& in, Matrix& out) {
  if (in.empty()) return {};
  out.rows = in.rows;
  out.cols = in.cols;
  out.data = in.weight.data;
  switch (in.format) {
    case WeightFormat::kPlain:
      if (in.weight.dtype == DType::kF32) {
        out.format = Format::kF32;
        out.row_bytes = in.cols * 4;
      } else if (in.weight.dtype == DType::kBF16) {
        out.format = Format::kBF16;
        out.row_bytes = in.cols * 2;
      } else {
        return unsupported(in.weight, "the CPU kernels take BF16 and F32 here, not " +
                                          std::string(dtype_name(in.weight.dtype)));
      }
      return {};
    case WeightFormat::kFP8PerChannel:
      out.format = Format::kE4M3;
      out.row_bytes = in.cols;
      out.scales = in.scale.data;
      return {};
    case WeightFormat::kMXFP8:
    case WeightFormat::kMXFP4:
      if (in.cols % kSplitUnit != 0) {
        return unsupported(in.weight, to_string(in.cols) +
                                          " columns: MX formats need a multiple of " +
                                          to_string(kSplitUnit));
      }
      out.format = in.format == WeightFormat::kMXFP8 ? Format::kMXFP8 : Format::kMXFP4;
      out.row_bytes = in.format == WeightFormat::kMXFP8 ? in.cols : in.cols / 2;
      out.scales = in.scale.data;
      out.scale_row_bytes = in.cols / kSplitUnit;
      return {};
  }
  return unsupported(in.weight, "unknown weight format");
}

Status view_mlp(const m3::MlpWeights& in, MlpView& out) {
  ML_RETURN_IF_ERROR(view_matrix(in.gate, out.gate));
  ML_RETURN_IF_ERROR(view_matrix(in.up, out.up));
  return view_matrix(in.down, out.down);
}

template <typename T>
Status copy_vector(const TensorView& in, DType dtype, ModelView& owner, const T*& out) {
  if (in.empty()) return {};
  ML_RETURN_IF_ERROR(expect_dtype(in, dtype));
  const auto& copy = owner.vectors.emplace_back(new std::byte[in.bytes]);
  std::memcpy(copy.get(), in.data, in.bytes);
  out = reinterpret_cast<const T*>(copy.get());
  return {};
}

Status view_layer(const m3::LayerPattern& pattern, const m3::LayerWeights& in, ModelView& owner,
                  LayerView& out) {
  out.sparse = pattern.sparse_attention;
  out.moe = pattern.moe;
  ML_RETURN_IF_ERROR(copy_vector(in.input_norm, DType::kBF16, owner, out.input_norm));
  ML_RETURN_IF_ERROR(copy_vector(in.post_norm, DType::kBF16, owner, out.post_norm));
  ML_RETURN_IF_ERROR(copy_vector(in.q_norm, DType::kBF16, owner, out.q_norm));
  ML_RETURN_IF_ERROR(copy_vector(in.k_norm, DType::kBF16, owner, out.k_norm));
  ML_RETURN_IF_ERROR(copy_vector(in.index_q_norm, DType::kBF16, owner, out.index_q_norm));
  ML_RETURN_IF_ERROR(copy_vector(in.index_k_norm, DType::kBF16, owner, out.index_k_norm));
  ML_RETURN_IF_ERROR(view_matrix(in.q, out.q));
  ML_RETURN_IF_ERROR(view_matrix(in.k, out.k));
  ML_RETURN_IF_ERROR(view_matrix(in.v, out.v));
  ML_RETURN_IF_ERROR(view_matrix(in.o, out.o));
  ML_RETURN_IF_ERROR(view_matrix(in.index_q, out.index_q));
  ML_RETURN_IF_ERROR(view_matrix(in.index_k, out.index_k));
  ML_RETURN_IF_ERROR(view_mlp(in.dense, out.dense));
  ML_RETURN_IF_ERROR(view_matrix(in.router, out.router));
  ML_RETURN_IF_ERROR(copy_vector(in.router_bias, DType::kF32, owner, out.router_bias));
  out.experts.resize(in.experts.size());
  for (std::size_t e = 0; e < in.experts.size(); ++e) {
    ML_RETURN_IF_ERROR(view_mlp(in.experts[e], out.experts[e]));
  }
  return view_mlp(in.shared, out.shared);
}

}  // namespace

Status check_shapes(const m3::ModelConfig& config) {
  const auto refuse = [](const char* field, const std::string& message) {
    return Status(Code::kUnsupported, field, message);
  };
  if (config.rotary_dim % 2 != 0 || config.rotary_dim > config.head_dim ||
      (config.any_sparse() && config.rotary_dim > config.index_dim)) {
    return refuse("rotary_dim",
                  to_string(config.rotary_dim) + ": the CPU kernels rotate an even part of a head");
  }
  if (!config.any_sparse()) return {};
  if (config.block_size <= 0 || m3::kPageTokens % config.block_size != 0) {
    return refuse("sparse_block_size", to_string(config.block_size) +
                                           " does not divide a page of " +
                                           to_string(m3::kPageTokens) + " tokens");
  }
  if (config.index_heads != config.num_kv_heads) {
    return refuse("sparse_num_index_heads", to_string(config.index_heads) + " index heads for " +
                                                to_string(config.num_kv_heads) + " KV heads");
  }
  return {};
}

Result<ModelView> view_model(const m3::ModelConfig& config, const m3::ModelWeights& weights) {
  ML_RETURN_IF_ERROR(check_shapes(config));
  ModelView view;
  ML_RETURN_IF_ERROR(view_matrix(weights.embed, view.embed));
  if (view.embed.format != Format::kBF16) {
    return unsupported(weights.embed.weight, "the embedding must be BF16");
  }
  ML_RETURN_IF_ERROR(view_matrix(weights.lm_head, view.lm_head));
  ML_RETURN_IF_ERROR(copy_vector(weights.final_norm, DType::kBF16, view, view.final_norm));
  view.layers.resize(weights.layers.size());
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    ML_RETURN_IF_ERROR(view_layer(config.layers[i], weights.layers[i], view, view.layers[i]));
  }
  return view;
}

}  // namespace monolayer::cpu

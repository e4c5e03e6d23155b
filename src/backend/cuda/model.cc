#include "backend/cuda/model.h"

#include <algorithm>
#include <string>

#include "backend/cuda/pack.h"
#include "core/dtype.h"

namespace monolayer::cuda {
namespace {

constexpr int kParts = 8;

Status refuse(const char* field, const std::string& message) {
  return {Code::kUnsupported, field, message};
}

Status check_shapes(const m3::ModelConfig& c) {
  using std::to_string;
  if (c.hidden_size % 32 != 0 || c.hidden_size > kMaxHidden)
    return refuse("hidden_size", to_string(c.hidden_size) +
                                     ": the CUDA kernels take multiples of 32 up to " +
                                     to_string(kMaxHidden));
  for (const std::int64_t dim : {c.head_dim, c.any_sparse() ? c.index_dim : std::int64_t{32}})
    if (dim % 32 != 0 || dim > 128)
      return refuse("head_dim", to_string(dim) + ": the CUDA kernels take 32, 64, 96 and 128");
  if (c.group_size() > 16)
    return refuse("num_attention_heads",
                  to_string(c.group_size()) + " query heads per KV head, the kernels take 16");
  if (c.rotary_dim > kMaxRotary || c.rotary_dim % 2 != 0 || c.rotary_dim > c.head_dim)
    return refuse("rotary_dim",
                  to_string(c.rotary_dim) + ": the kernels rotate an even part of a head");
  if (c.any_sparse()) {
    if (c.block_size % 16 != 0 || c.block_size <= 0 || kPageTokens % c.block_size != 0)
      return refuse("sparse_block_size",
                    to_string(c.block_size) + ": a multiple of 16 that divides 128 is needed");
    if (c.index_heads != c.num_kv_heads || c.index_heads > kColumns)
      return refuse("sparse_num_index_heads",
                    to_string(c.index_heads) + ": as many as KV heads, at most 8, are needed");
    if (c.topk_blocks > kMaxTopBlocks)
      return refuse("sparse_topk_blocks",
                    to_string(c.topk_blocks) + ", at most " + to_string(kMaxTopBlocks));
  }
  if (c.any_moe() && (c.num_experts > kMaxExperts || c.experts_per_token > kMaxChosen))
    return refuse("num_local_experts", to_string(c.experts_per_token) + " of " +
                                           to_string(c.num_experts) + ", at most " +
                                           to_string(kMaxChosen) + " of " + to_string(kMaxExperts));
  return {};
}

StoredRow row_of(const QuantizedMatrix& m, std::int64_t row) {
  if (row >= m.rows) return {};
  const auto* data = reinterpret_cast<const std::byte*>(m.weight.data);
  switch (m.format) {
    case WeightFormat::kMXFP4:
      return {data + row * m.cols / 2,
              reinterpret_cast<const std::uint8_t*>(m.scale.data) + row * m.cols / 32};
    case WeightFormat::kFP8PerChannel:
      return {data + row * m.cols, nullptr};
    default:
      return {data + row * m.cols * static_cast<std::int64_t>(dtype_size(m.weight.dtype)), nullptr};
  }
}

void add_scales(const QuantizedMatrix& m, std::vector<float>& scales) {
  if (m.format != WeightFormat::kFP8PerChannel) return;
  const float* from = m.scale.as<float>();
  scales.insert(scales.end(), from, from + m.rows);
}

}  // namespace

Result<std::unique_ptr<DeviceModel>> DeviceModel::create(const m3::ModelConfig& config,
                                                         const m3::ModelWeights& weights) {
  ML_RETURN_IF_ERROR(check_shapes(config));
  std::unique_ptr<DeviceModel> model(new DeviceModel);
  try {
    ML_RETURN_IF_ERROR(model->build(config, weights));
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "CUDA weights", "no host memory to repack them");
  }
  return model;
}

Result<void*> DeviceModel::upload(const void* data, std::size_t bytes, const char* what) {
  ML_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::create(bytes, what));
  ML_RETURN_IF_ERROR(
      cuda_status(cudaMemcpy(buffer.as<void>(), data, bytes, cudaMemcpyHostToDevice), what));
  void* result = buffer.as<void>();
  weight_bytes_ += static_cast<std::int64_t>(bytes);
  buffers_.push_back(std::move(buffer));
  return result;
}

template <typename T>
Status DeviceModel::upload_vector(const TensorView& tensor, const T*& out) {
  out = nullptr;
  if (tensor.empty()) return {};
  ML_ASSIGN_OR_RETURN(void* data, upload(tensor.data, tensor.bytes, "CUDA norms"));
  out = static_cast<const T*>(data);
  return {};
}

// One matrix of the rows of several, all of one format, one after the other.
Result<Matrix> DeviceModel::upload_matrix(const std::vector<const QuantizedMatrix*>& parts,
                                          bool router) {
  const QuantizedMatrix& first = *parts.front();
  ML_ASSIGN_OR_RETURN(const Format format, pack_format(first));
  std::int64_t rows = 0;
  std::vector<float> scales;
  for (const QuantizedMatrix* part : parts) {
    ML_ASSIGN_OR_RETURN(const Format own, pack_format(*part));
    if (own != format || (format == Format::kF32 && !router))
      return Status(Code::kUnsupported, std::string(part->weight.name),
                    "the CUDA kernels take one format, not F32, for all projections of a layer");
    rows += part->rows;
    add_scales(*part, scales);
  }
  Matrix m = describe(format, rows, first.cols, router ? kRouterParts : kParts);
  std::vector<unsigned char> packed(static_cast<std::size_t>(packed_bytes(m)));
  pack(
      m,
      [&](std::int64_t row) {
        for (const QuantizedMatrix* part : parts) {
          if (row < part->rows) return row_of(*part, row);
          row -= part->rows;
        }
        return StoredRow{};
      },
      packed.data());
  ML_ASSIGN_OR_RETURN(void* data, upload(packed.data(), packed.size(), "CUDA weights"));
  m.data = static_cast<const unsigned char*>(data);
  if (!scales.empty()) {
    scales.resize(static_cast<std::size_t>(m.row_groups) * 16);
    ML_ASSIGN_OR_RETURN(void* at, upload(scales.data(), scales.size() * 4, "CUDA weight scales"));
    m.row_scale = static_cast<const float*>(at);
  }
  return m;
}

// Row group g of an expert: rows 8 g .. 8 g + 7 of gate, then the same of up.
Result<Matrix> DeviceModel::upload_gate_up(const std::vector<const m3::MlpWeights*>& experts) {
  const m3::MlpWeights& first = *experts.front();
  ML_ASSIGN_OR_RETURN(const Format format, pack_format(first.gate));
  Matrix m = describe(format, first.gate.rows * 2, first.gate.cols, kParts);
  std::vector<unsigned char> packed(static_cast<std::size_t>(packed_bytes(m)) * experts.size());
  std::vector<float> scales;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const m3::MlpWeights& mlp = *experts[e];
    ML_ASSIGN_OR_RETURN(const Format gate, pack_format(mlp.gate));
    ML_ASSIGN_OR_RETURN(const Format up, pack_format(mlp.up));
    if (gate != format || up != format || format == Format::kF32 || mlp.gate.rows % 8 != 0)
      return Status(Code::kUnsupported, std::string(mlp.gate.weight.name),
                    "the CUDA kernels take gate and up of one format, the same for all experts of "
                    "a layer, of a width that is a multiple of 8");
    pack(
        m,
        [&](std::int64_t row) {
          const std::int64_t at = row / 16 * 8 + row % 8;
          return row_of(row % 16 < 8 ? mlp.gate : mlp.up, at);
        },
        packed.data() + e * static_cast<std::size_t>(packed_bytes(m)));
    if (format != Format::kE4M3) continue;
    for (std::int64_t row = 0; row < m.row_groups * 16; ++row) {
      const QuantizedMatrix& from = row % 16 < 8 ? mlp.gate : mlp.up;
      scales.push_back(from.scale.as<float>()[row / 16 * 8 + row % 8]);
    }
  }
  ML_ASSIGN_OR_RETURN(void* data, upload(packed.data(), packed.size(), "CUDA weights"));
  m.data = static_cast<const unsigned char*>(data);
  if (!scales.empty()) {
    ML_ASSIGN_OR_RETURN(void* at, upload(scales.data(), scales.size() * 4, "CUDA weight scales"));
    m.row_scale = static_cast<const float*>(at);
  }
  return m;
}

Result<Matrix> DeviceModel::upload_down(const std::vector<const m3::MlpWeights*>& experts) {
  const QuantizedMatrix& first = experts.front()->down;
  ML_ASSIGN_OR_RETURN(const Format format, pack_format(first));
  Matrix m = describe(format, first.rows, first.cols, kParts);
  std::vector<unsigned char> packed(static_cast<std::size_t>(packed_bytes(m)) * experts.size());
  std::vector<float> scales;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const QuantizedMatrix& down = experts[e]->down;
    ML_ASSIGN_OR_RETURN(const Format own, pack_format(down));
    if (own != format || format == Format::kF32)
      return Status(Code::kUnsupported, std::string(down.weight.name),
                    "the CUDA kernels take one format, not F32, for all experts of a layer");
    pack(
        m, [&](std::int64_t row) { return row_of(down, row); },
        packed.data() + e * static_cast<std::size_t>(packed_bytes(m)));
    add_scales(down, scales);
    if (format == Format::kE4M3)
      scales.resize((e + 1) * static_cast<std::size_t>(m.row_groups) * 16);
  }
  ML_ASSIGN_OR_RETURN(void* data, upload(packed.data(), packed.size(), "CUDA weights"));
  m.data = static_cast<const unsigned char*>(data);
  if (!scales.empty()) {
    ML_ASSIGN_OR_RETURN(void* at, upload(scales.data(), scales.size() * 4, "CUDA weight scales"));
    m.row_scale = static_cast<const float*>(at);
  }
  return m;
}

Status DeviceModel::build(const m3::ModelConfig& config, const m3::ModelWeights& weights) {
  if (weights.embed.format != WeightFormat::kPlain || weights.embed.weight.dtype != DType::kBF16)
    return {Code::kUnsupported, std::string(weights.embed.weight.name),
            "the embedding must be BF16"};
  ML_RETURN_IF_ERROR(upload_vector(weights.embed.weight, embed_));
  ML_RETURN_IF_ERROR(upload_vector(weights.final_norm, final_norm_));
  ML_ASSIGN_OR_RETURN(lm_head_, upload_matrix({&weights.lm_head}, false));
  hidden_row_ = lm_head_.row_bytes;
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const m3::LayerWeights& in = weights.layers[i];
    Layer out;
    out.sparse = config.layers[i].sparse_attention ? 1 : 0;
    out.moe = config.layers[i].moe ? 1 : 0;
    ML_RETURN_IF_ERROR(upload_vector(in.input_norm, out.input_norm));
    ML_RETURN_IF_ERROR(upload_vector(in.post_norm, out.post_norm));
    ML_RETURN_IF_ERROR(upload_vector(in.q_norm, out.q_norm));
    ML_RETURN_IF_ERROR(upload_vector(in.k_norm, out.k_norm));
    ML_RETURN_IF_ERROR(upload_vector(in.index_q_norm, out.index_q_norm));
    ML_RETURN_IF_ERROR(upload_vector(in.index_k_norm, out.index_k_norm));
    std::vector<const QuantizedMatrix*> projections{&in.q, &in.k, &in.v};
    if (out.sparse != 0) projections.insert(projections.end(), {&in.index_q, &in.index_k});
    ML_ASSIGN_OR_RETURN(out.qkv, upload_matrix(projections, false));
    ML_ASSIGN_OR_RETURN(out.o, upload_matrix({&in.o}, false));
    const m3::MlpWeights& always = out.moe != 0 ? in.shared : in.dense;
    if (!always.gate.empty()) {
      out.shared = 1;
      ML_ASSIGN_OR_RETURN(out.shared_gate_up, upload_gate_up({&always}));
      ML_ASSIGN_OR_RETURN(out.shared_down, upload_down({&always}));
    }
    if (out.moe != 0) {
      ML_RETURN_IF_ERROR(upload_vector(in.router_bias, out.router_bias));
      ML_ASSIGN_OR_RETURN(out.router, upload_matrix({&in.router}, true));
      std::vector<const m3::MlpWeights*> experts;
      for (const m3::MlpWeights& expert : in.experts) experts.push_back(&expert);
      ML_ASSIGN_OR_RETURN(out.gate_up, upload_gate_up(experts));
      ML_ASSIGN_OR_RETURN(out.down, upload_down(experts));
      out.gate_up_stride = packed_bytes(out.gate_up);
      out.down_stride = packed_bytes(out.down);
    }
    for (const Matrix* m : {&out.qkv, &out.router, &out.gate_up, &out.shared_gate_up}) {
      hidden_row_ = std::max(hidden_row_, m->row_bytes);
    }
    for (const Matrix* m : {&out.o, &out.down, &out.shared_down}) {
      other_row_ = std::max(other_row_, m->row_bytes);
    }
    layers_.push_back(out);
  }
  return {};
}

}  // namespace monolayer::cuda

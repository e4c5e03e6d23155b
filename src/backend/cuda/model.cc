#include "backend/cuda/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

// The largest value that RMSNorm with these BF16 weights gives: a row's norm is sqrt(n) and may be
// all in one column. NaN if a weight is.
float norm_bound(const TensorView& weights) {
  const auto n = static_cast<std::int64_t>(weights.bytes / 2);
  float largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    bf16_t bits = 0;
    std::memcpy(&bits, weights.data + i * 2, 2);
    const float factor = std::fabs(1.0F + bf16_to_f32(bits));
    if (!(factor <= largest)) largest = factor;
  }
  return std::sqrt(static_cast<float>(n)) * largest;
}

}  // namespace

// What one rank takes of each matrix.
struct DeviceModel::Share {
  const m3::RankShape& rank;
  std::int64_t head, index;  // values of a head
  float activation;          // activation_bound()

  int split_parts() const { return kParts / static_cast<int>(rank.size); }
  Slice query_rows(const QuantizedMatrix& m) const {
    return row_slice(m, rank.first_head * head, rank.heads * head);
  }
  Slice kv_rows(const QuantizedMatrix& m, std::int64_t dim) const {
    return row_slice(m, rank.first_kv_head * dim, rank.kv_heads * dim);
  }
  Slice query_columns(const QuantizedMatrix& m) const {
    return column_slice(m, rank.first_head * head, rank.heads * head);
  }
  Slice width_rows(const QuantizedMatrix& m) const {
    return row_slice(m, rank.rank * (m.rows / rank.size), m.rows / rank.size);
  }
  Slice width_columns(const QuantizedMatrix& m) const {
    return column_slice(m, rank.rank * (m.cols / rank.size), m.cols / rank.size);
  }
};

Result<std::unique_ptr<DeviceModel>> DeviceModel::create(const m3::ModelConfig& config,
                                                         const m3::ModelWeights& weights,
                                                         const m3::RankShape& rank) {
  ML_RETURN_IF_ERROR(check_shapes(m3::rank_config(config, rank)));
  std::unique_ptr<DeviceModel> model(new DeviceModel);
  try {
    ML_RETURN_IF_ERROR(model->build(
        config, weights,
        {rank, config.head_dim, config.index_dim,
         activation_bound(config.swiglu_alpha, config.swiglu_limit, config.swiglu_beta)}));
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

// One matrix of the rows of several, all of one format, one after the other; K in `parts`.
Result<Matrix> DeviceModel::upload_matrix(const std::vector<Slice>& slices, int parts) {
  ML_ASSIGN_OR_RETURN(const Format format, pack_format(*slices.front().m));
  std::int64_t rows = 0;
  std::vector<float> scales;
  for (const Slice& slice : slices) {
    ML_ASSIGN_OR_RETURN(const Format own, pack_format(*slice.m));
    if (own != format || (format == Format::kF32 && parts != kRouterParts))
      return Status(Code::kUnsupported, std::string(slice.m->weight.name),
                    "the CUDA kernels take one format, not F32, for all projections of a layer");
    rows += slice.rows;
    add_row_scales(slice, scales);
  }
  Matrix m = describe(format, rows, slices.front().cols, parts);
  std::vector<unsigned char> packed(static_cast<std::size_t>(packed_bytes(m)));
  pack(
      m,
      [&](std::int64_t row) {
        for (const Slice& slice : slices) {
          if (row < slice.rows) return stored_row(slice, row);
          row -= slice.rows;
        }
        return StoredRow{};
      },
      packed.data());
  return upload_packed(m, packed, scales);
}

// `scales`: padded to whole row groups here.
Result<Matrix> DeviceModel::upload_packed(Matrix m, const std::vector<unsigned char>& packed,
                                          std::vector<float>& scales) {
  ML_ASSIGN_OR_RETURN(void* data, upload(packed.data(), packed.size(), "CUDA weights"));
  m.data = static_cast<const unsigned char*>(data);
  if (scales.empty()) return m;
  scales.resize((scales.size() + 15) / 16 * 16);
  ML_ASSIGN_OR_RETURN(void* at, upload(scales.data(), scales.size() * 4, "CUDA weight scales"));
  m.row_scale = static_cast<const float*>(at);
  return m;
}

// Row group g of an expert: rows 8 g .. 8 g + 7 of gate, then the same of up.
Result<Matrix> DeviceModel::upload_gate_up(const std::vector<const m3::MlpWeights*>& experts,
                                           const Share& share) {
  const Slice first = share.width_rows(experts.front()->gate);
  ML_ASSIGN_OR_RETURN(const Format format, pack_format(*first.m));
  const Matrix m = describe(format, first.rows * 2, first.cols, kParts);
  std::vector<unsigned char> packed(static_cast<std::size_t>(packed_bytes(m)) * experts.size());
  std::vector<float> scales;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const m3::MlpWeights& mlp = *experts[e];
    const Slice of[2] = {share.width_rows(mlp.gate), share.width_rows(mlp.up)};
    ML_ASSIGN_OR_RETURN(const Format gate, pack_format(mlp.gate));
    ML_ASSIGN_OR_RETURN(const Format up, pack_format(mlp.up));
    if (gate != format || up != format || format == Format::kF32 || of[0].rows % 8 != 0)
      return Status(Code::kUnsupported, std::string(mlp.gate.weight.name),
                    "the CUDA kernels take gate and up of one format, the same for all experts of "
                    "a layer, of a width that is a multiple of 8");
    pack(
        m, [&](std::int64_t row) { return stored_row(of[row % 16 / 8], row / 16 * 8 + row % 8); },
        packed.data() + e * static_cast<std::size_t>(packed_bytes(m)));
    std::vector<float> own[2];
    for (int i = 0; i < 2; ++i) add_row_scales(of[i], own[i]);
    if (own[0].empty()) continue;
    for (std::int64_t row = 0; row < m.row_groups * 16; ++row) {
      scales.push_back(own[row % 16 / 8][static_cast<std::size_t>(row / 16 * 8 + row % 8)]);
    }
  }
  return upload_packed(m, packed, scales);
}

Result<Matrix> DeviceModel::upload_down(const std::vector<const m3::MlpWeights*>& experts,
                                        const Share& share) {
  const Slice first = share.width_columns(experts.front()->down);
  ML_ASSIGN_OR_RETURN(const Format format, pack_format(*first.m));
  const Matrix m = describe(format, first.rows, first.cols, share.split_parts());
  std::vector<unsigned char> packed(static_cast<std::size_t>(packed_bytes(m)) * experts.size());
  std::vector<float> scales;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const Slice down = share.width_columns(experts[e]->down);
    ML_ASSIGN_OR_RETURN(const Format own, pack_format(*down.m));
    if (own != format || format == Format::kF32)
      return Status(Code::kUnsupported, std::string(down.m->weight.name),
                    "the CUDA kernels take one format, not F32, for all experts of a layer");
    pack(
        m, [&](std::int64_t row) { return stored_row(down, row); },
        packed.data() + e * static_cast<std::size_t>(packed_bytes(m)));
    add_row_scales(down, scales);
    if (format == Format::kE4M3)
      scales.resize((e + 1) * static_cast<std::size_t>(m.row_groups) * 16);
  }
  return upload_packed(m, packed, scales);
}

Status DeviceModel::build_layer(const m3::LayerWeights& in, const Share& share, Layer& out) {
  ML_RETURN_IF_ERROR(upload_vector(in.input_norm, out.input_norm));
  ML_RETURN_IF_ERROR(upload_vector(in.post_norm, out.post_norm));
  ML_RETURN_IF_ERROR(upload_vector(in.q_norm, out.q_norm));
  ML_RETURN_IF_ERROR(upload_vector(in.k_norm, out.k_norm));
  ML_RETURN_IF_ERROR(upload_vector(in.index_q_norm, out.index_q_norm));
  ML_RETURN_IF_ERROR(upload_vector(in.index_k_norm, out.index_k_norm));
  if (out.sparse != 0) out.index_q_scale = half_scale(norm_bound(in.index_q_norm));
  std::vector<Slice> projections{share.query_rows(in.q), share.kv_rows(in.k, share.head),
                                 share.kv_rows(in.v, share.head)};
  if (out.sparse != 0) {
    projections.push_back(share.kv_rows(in.index_q, share.index));
    projections.push_back(whole_slice(in.index_k));
  }
  ML_ASSIGN_OR_RETURN(out.qkv, upload_matrix(projections, kParts));
  stage_as_half(norm_bound(in.input_norm), out.qkv);
  ML_ASSIGN_OR_RETURN(out.o, upload_matrix({share.query_columns(in.o)}, share.split_parts()));
  const m3::MlpWeights& always = out.moe != 0 ? in.shared : in.dense;
  if (!always.gate.empty()) {
    out.shared = 1;
    ML_ASSIGN_OR_RETURN(out.shared_gate_up, upload_gate_up({&always}, share));
    ML_ASSIGN_OR_RETURN(out.shared_down, upload_down({&always}, share));
  }
  if (out.moe == 0) {
    stage_as_half(norm_bound(in.post_norm), out.shared_gate_up);
    stage_as_half(share.activation, out.shared_down);
    return {};
  }
  ML_RETURN_IF_ERROR(upload_vector(in.router_bias, out.router_bias));
  ML_ASSIGN_OR_RETURN(out.router, upload_matrix({whole_slice(in.router)}, kRouterParts));
  std::vector<const m3::MlpWeights*> experts;
  for (const m3::MlpWeights& expert : in.experts) experts.push_back(&expert);
  ML_ASSIGN_OR_RETURN(out.gate_up, upload_gate_up(experts, share));
  ML_ASSIGN_OR_RETURN(out.down, upload_down(experts, share));
  out.gate_up_stride = packed_bytes(out.gate_up);
  out.down_stride = packed_bytes(out.down);
  return {};
}

Status DeviceModel::build(const m3::ModelConfig& config, const m3::ModelWeights& weights,
                          const Share& share) {
  if (weights.embed.format != WeightFormat::kPlain || weights.embed.weight.dtype != DType::kBF16)
    return {Code::kUnsupported, std::string(weights.embed.weight.name),
            "the embedding must be BF16"};
  ML_RETURN_IF_ERROR(upload_vector(weights.embed.weight, embed_));
  ML_RETURN_IF_ERROR(upload_vector(weights.final_norm, final_norm_));
  ML_ASSIGN_OR_RETURN(lm_head_, upload_matrix({share.width_rows(weights.lm_head)}, kParts));
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    Layer out;
    out.sparse = config.layers[i].sparse_attention ? 1 : 0;
    out.moe = config.layers[i].moe ? 1 : 0;
    ML_RETURN_IF_ERROR(build_layer(weights.layers[i], share, out));
    layers_.push_back(out);
  }
  measure_rows();
  return {};
}

void DeviceModel::measure_rows() {
  hidden_row_ = lm_head_.row_bytes;
  for (const Layer& layer : layers_) {
    for (const Matrix* m : {&layer.qkv, &layer.router, &layer.gate_up, &layer.shared_gate_up}) {
      hidden_row_ = std::max(hidden_row_, m->row_bytes);
    }
    for (const Matrix* m : {&layer.o, &layer.down, &layer.shared_down}) {
      other_row_ = std::max(other_row_, m->row_bytes);
    }
  }
}

}  // namespace monolayer::cuda

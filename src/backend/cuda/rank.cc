#include "backend/cuda/rank.h"

#include <algorithm>
#include <cmath>

#include "backend/cuda/bench_kernels.h"
#include "backend/cuda/pack.h"
#include "core/dtype.h"

namespace monolayer::cuda {

Result<std::unique_ptr<Rank>> Rank::create(
    const m3::ModelConfig& config, const m3::RankShape& shape,
    const std::function<Result<std::unique_ptr<DeviceModel>>()>& model) {
  std::unique_ptr<Rank> rank(new Rank(shape));
  rank->config_ = m3::rank_config(config, shape);
  ML_ASSIGN_OR_RETURN(rank->model_, model());
  return rank;
}

template <typename T>
Status Rank::allocate(T*& out, std::int64_t count, const char* what) {
  ML_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                      DeviceBuffer::create(static_cast<std::size_t>(count) * sizeof(T), what));
  out = buffer.as<T>();
  buffers_.push_back(std::move(buffer));
  return {};
}

void Rank::set_shape(const cpu::CacheOptions& options) {
  const m3::ModelConfig& c = config_;
  Shape& s = params_.shape;
  const auto n = [](std::int64_t v) { return static_cast<std::int32_t>(v); };
  s.hidden = n(c.hidden_size);
  s.heads = n(c.num_heads);
  s.kv_heads = n(c.num_kv_heads);
  s.group = n(c.group_size());
  s.head_dim = n(c.head_dim);
  s.rotary = n(c.rotary_dim);
  s.index_heads = n(c.index_heads);
  s.index_dim = n(c.index_dim);
  s.block_size = n(c.block_size);
  s.topk = n(c.topk_blocks);
  s.init_blocks = n(c.init_blocks);
  s.local_blocks = n(c.local_blocks);
  s.experts = n(c.num_experts);
  s.chosen = n(c.experts_per_token);
  s.expert_width = n(c.expert_width);
  s.mid_width = n(std::max({c.expert_width, c.shared_width, c.dense_width}));
  s.vocab = n(shape_.vocab_rows);
  s.q_at = 0;
  s.k_at = n(c.q_width());
  s.v_at = s.k_at + n(c.kv_width());
  s.index_q_at = s.v_at + n(c.kv_width());
  s.index_k_at = s.index_q_at + n(c.index_width());
  s.projected = c.any_sparse() ? s.index_k_at + n(c.index_dim) : s.index_q_at;
  s.kv_fp8 = options.kv == DType::kE4M3 ? 1 : 0;
  s.index_fp8 = options.index == DType::kE4M3 ? 1 : 0;
  s.eps = c.rms_eps;
  s.routed_scale = c.routed_scale;
  s.alpha = c.swiglu_alpha;
  s.limit = c.swiglu_limit;
  s.beta = c.swiglu_beta;
  s.k_scale = options.k_scale;
  s.v_scale = options.v_scale;
  s.index_scale = options.index_scale;
  s.score_scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim)) * options.k_scale;
}

Status Rank::bind(const cpu::CacheOptions& options, std::int64_t pages) {
  buffers_.clear();
  params_ = {};
  set_shape(options);
  const m3::ModelConfig& c = config_;
  Params& p = params_;
  const Shape& s = p.shape;
  const auto n = [](std::int64_t v) { return static_cast<std::int32_t>(v); };
  layers_ = model_->layers();
  kv_bytes_ = pages * c.num_kv_heads * kPageTokens * c.head_dim *
              static_cast<std::int64_t>(dtype_size(options.kv));
  index_bytes_ =
      pages * kPageTokens * c.index_dim * static_cast<std::int64_t>(dtype_size(options.index));
  for (Layer& layer : layers_) {
    // Attention's outputs are means of cached values, which E4M3 bounds.
    if (s.kv_fp8 != 0) stage_as_half(448.0F * options.v_scale, layer.o);
    ML_RETURN_IF_ERROR(allocate(layer.k_cache, kv_bytes_, "CUDA caches"));
    ML_RETURN_IF_ERROR(allocate(layer.v_cache, kv_bytes_, "CUDA caches"));
    if (layer.sparse != 0)
      ML_RETURN_IF_ERROR(allocate(layer.index_cache, index_bytes_, "CUDA caches"));
  }
  Layer* device_layers = nullptr;
  ML_RETURN_IF_ERROR(
      allocate(device_layers, static_cast<std::int64_t>(layers_.size()), "CUDA layers"));
  ML_CUDA(cudaMemcpy(device_layers, layers_.data(), layers_.size() * sizeof(Layer),
                     cudaMemcpyHostToDevice));
  p.layers = device_layers;
  p.embed = model_->embed();
  p.final_norm = model_->final_norm();
  p.lm_head = model_->lm_head();
  p.table_stride = n(pages);
  p.score_stride = n(pages * (kPageTokens / 16));
  p.max_chunks =
      n(std::max<std::int64_t>(std::min<std::int64_t>(pages, kMostPartials), c.topk_blocks));
  const std::int64_t rows = kMaxRows;
  ML_RETURN_IF_ERROR(allocate(p.hidden, rows * c.hidden_size, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.middle, rows * c.hidden_size, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.normed, rows * c.hidden_size, "CUDA activations"));
  p.projected_stride = (s.projected + 15) / 16 * 16;
  ML_RETURN_IF_ERROR(
      allocate(p.projected, kProjectionParts * rows * p.projected_stride, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.q, rows * c.q_width(), "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.scores, rows * c.index_heads * p.score_stride, "CUDA scores"));
  ML_RETURN_IF_ERROR(allocate(p.block_ids, rows * c.index_heads * c.topk_blocks, "CUDA scores"));
  ML_RETURN_IF_ERROR(allocate(
      p.partials, rows * c.num_kv_heads * p.max_chunks * partial_floats(s.group, s.head_dim),
      "CUDA attention partials"));
  ML_RETURN_IF_ERROR(allocate(p.attended, rows * c.q_width(), "CUDA activations"));
  ML_RETURN_IF_ERROR(
      allocate(p.router, kRouterParts * rows * (c.num_experts + 16), "CUDA activations"));
  ML_RETURN_IF_ERROR(
      allocate(p.mid, rows * (c.experts_per_token + 1) * s.mid_width, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.table, 1, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.logits, rows * s.vocab, "CUDA activations"));
  return {};
}

Status Rank::fill_caches(std::uint64_t seed) {
  const auto fill = [&](unsigned char* cache, std::int64_t bytes, bool fp8) -> Status {
    ML_CUDA(fill_random(cache, static_cast<std::uint64_t>(bytes), fp8 ? Fill::kE4M3 : Fill::kBF16,
                        seed, nullptr));
    seed += static_cast<std::uint64_t>(bytes);
    return {};
  };
  for (const Layer& layer : layers_) {
    ML_RETURN_IF_ERROR(fill(layer.k_cache, kv_bytes_, params_.shape.kv_fp8 != 0));
    ML_RETURN_IF_ERROR(fill(layer.v_cache, kv_bytes_, params_.shape.kv_fp8 != 0));
    if (layer.sparse != 0)
      ML_RETURN_IF_ERROR(fill(layer.index_cache, index_bytes_, params_.shape.index_fp8 != 0));
  }
  return {};
}

}  // namespace monolayer::cuda

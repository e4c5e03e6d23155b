#include "backend/cuda/random_model.h"

#include <cmath>
#include <new>
#include <utility>
#include <vector>

#include "backend/cuda/bench_kernels.h"
#include "backend/cuda/chain.h"
#include "backend/cuda/model.h"
#include "backend/cuda/pack.h"

namespace monolayer::cuda {
namespace {

constexpr int kParts = 8;

}  // namespace

m3::ModelConfig m3_config(std::int64_t dense_layers, std::int64_t sparse_layers) {
  m3::ModelConfig c;
  c.hidden_size = 6144;
  c.num_layers = dense_layers + sparse_layers;
  c.num_heads = 64;
  c.num_kv_heads = c.index_heads = 4;
  c.head_dim = c.index_dim = 128;
  c.rotary_dim = 64;
  c.rope_theta = 5e6;
  c.vocab_size = 200064;
  c.max_positions = 1 << 20;
  c.rms_eps = 1e-6F;
  c.dense_width = 12288;
  c.expert_width = c.shared_width = 3072;
  c.num_experts = 128;
  c.experts_per_token = 4;
  c.routing_bias = true;
  c.routed_scale = 2.0F;
  c.swiglu_alpha = 1.702F;
  c.swiglu_limit = 7.0F;
  c.swiglu_beta = 1.0F;
  c.block_size = 128;
  c.topk_blocks = 16;
  c.init_blocks = 0;
  c.local_blocks = 1;
  // What no layer has asks for no room either.
  if (dense_layers == 0) c.dense_width = 0;
  for (std::int64_t i = 0; i < c.num_layers; ++i) {
    c.layers.push_back({.sparse_attention = i >= dense_layers, .moe = i >= dense_layers});
  }
  return c;
}

cpu::CacheOptions m3_caches() {
  return {.kv = DType::kE4M3,
          .index = DType::kE4M3,
          .k_scale = 0.02F,
          .v_scale = 0.02F,
          .index_scale = 0.02F};
}

// Where random contents come from: every matrix the next stretch of one sequence.
struct DeviceModel::Random {
  DeviceModel& model;
  std::uint64_t seed;
  int split_parts;  // of a split K, on this rank
  Format router = Format::kBF16;

  template <typename T>
  Result<T*> values(std::int64_t count, Fill fill) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    ML_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::create(bytes, "CUDA random weights"));
    T* data = buffer.as<T>();
    ML_CUDA(fill_random(data, bytes, fill, seed, nullptr));
    seed += bytes;
    model.weight_bytes_ += static_cast<std::int64_t>(bytes);
    model.buffers_.push_back(std::move(buffer));
    return data;
  }

  Status matrix(Format format, std::int64_t rows, std::int64_t cols, int parts, std::int64_t copies,
                Matrix& out) {
    out = describe(format, rows, cols, parts);
    const Fill fill = format == Format::kE4M3    ? Fill::kE4M3
                      : format == Format::kMXFP4 ? Fill::kMXFP4
                                                 : Fill::kBF16;
    ML_ASSIGN_OR_RETURN(out.data, values<unsigned char>(packed_bytes(out) * copies, fill));
    if (format != Format::kE4M3) return {};
    std::vector<float> scales(static_cast<std::size_t>(out.row_groups * 16 * copies));
    for (std::size_t i = 0; i < scales.size(); ++i) {
      scales[i] = 1e-4F * (1.0F + static_cast<float>(i % 7) / 8);
    }
    ML_ASSIGN_OR_RETURN(void* at,
                        model.upload(scales.data(), scales.size() * 4, "CUDA weight scales"));
    out.row_scale = static_cast<const float*>(at);
    return {};
  }

  Status norm(std::int64_t count, const std::uint16_t*& out) {
    ML_ASSIGN_OR_RETURN(out, values<std::uint16_t>(count, Fill::kBF16));
    return {};
  }
};

// `config`: as the rank sees the model.
Status DeviceModel::build_random(const m3::ModelConfig& config, Random& random) {
  const m3::ModelConfig& c = config;
  const int parts = random.split_parts;
  for (const m3::LayerPattern& pattern : c.layers) {
    Layer l;
    l.sparse = pattern.sparse_attention ? 1 : 0;
    l.moe = pattern.moe ? 1 : 0;
    l.shared = 1;
    const std::int64_t projected =
        c.q_width() + 2 * c.kv_width() + (l.sparse != 0 ? c.index_width() + c.index_dim : 0);
    ML_RETURN_IF_ERROR(random.matrix(Format::kE4M3, projected, c.hidden_size, kParts, 1, l.qkv));
    // Norms below are about 2^-6, so factors below 2.
    const float normed = 2 * std::sqrt(static_cast<float>(c.hidden_size));
    stage_as_half(normed, l.qkv);
    ML_RETURN_IF_ERROR(random.matrix(Format::kE4M3, c.hidden_size, c.q_width(), parts, 1, l.o));
    const std::int64_t width = l.moe != 0 ? c.shared_width : c.dense_width;
    const Format format = l.moe != 0 ? Format::kMXFP4 : Format::kE4M3;
    ML_RETURN_IF_ERROR(
        random.matrix(format, 2 * width, c.hidden_size, kParts, 1, l.shared_gate_up));
    ML_RETURN_IF_ERROR(random.matrix(format, c.hidden_size, width, parts, 1, l.shared_down));
    if (l.moe == 0) {
      stage_as_half(normed, l.shared_gate_up);
      stage_as_half(activation_bound(c.swiglu_alpha, c.swiglu_limit, c.swiglu_beta), l.shared_down);
    }
    ML_RETURN_IF_ERROR(random.norm(c.hidden_size, l.input_norm));
    ML_RETURN_IF_ERROR(random.norm(c.hidden_size, l.post_norm));
    ML_RETURN_IF_ERROR(random.norm(c.head_dim, l.q_norm));
    ML_RETURN_IF_ERROR(random.norm(c.head_dim, l.k_norm));
    if (l.sparse != 0) {
      ML_RETURN_IF_ERROR(random.norm(c.index_dim, l.index_q_norm));
      ML_RETURN_IF_ERROR(random.norm(c.index_dim, l.index_k_norm));
      l.index_q_scale = half_scale(2 * std::sqrt(static_cast<float>(c.index_dim)));
    }
    if (l.moe != 0) {
      const std::int64_t experts = c.num_experts;
      ML_RETURN_IF_ERROR(
          random.matrix(random.router, experts, c.hidden_size, kRouterParts, 1, l.router));
      ML_RETURN_IF_ERROR(random.matrix(Format::kMXFP4, 2 * c.expert_width, c.hidden_size, kParts,
                                       experts, l.gate_up));
      ML_RETURN_IF_ERROR(
          random.matrix(Format::kMXFP4, c.hidden_size, c.expert_width, parts, experts, l.down));
      l.gate_up_stride = packed_bytes(l.gate_up);
      l.down_stride = packed_bytes(l.down);
      const std::vector<float> bias(static_cast<std::size_t>(experts));
      ML_ASSIGN_OR_RETURN(void* at, upload(bias.data(), bias.size() * 4, "CUDA norms"));
      l.router_bias = static_cast<const float*>(at);
    }
    layers_.push_back(l);
  }
  return {};
}

Result<std::unique_ptr<DeviceModel>> DeviceModel::random(const m3::ModelConfig& config,
                                                         const m3::RankShape& rank,
                                                         std::uint64_t seed, bool f32_router) {
  std::unique_ptr<DeviceModel> model(new DeviceModel);
  Random random{*model, seed, kParts / static_cast<int>(rank.size),
                f32_router ? Format::kF32 : Format::kBF16};
  const m3::ModelConfig own = m3::rank_config(config, rank);
  ML_RETURN_IF_ERROR(model->build_random(own, random));
  ML_ASSIGN_OR_RETURN(model->embed_, random.values<std::uint16_t>(
                                         config.vocab_size * config.hidden_size, Fill::kBF16));
  ML_RETURN_IF_ERROR(random.norm(config.hidden_size, model->final_norm_));
  ML_RETURN_IF_ERROR(random.matrix(Format::kBF16, rank.vocab_rows, config.hidden_size, kParts, 1,
                                   model->lm_head_));
  model->measure_rows();
  ML_CUDA(cudaDeviceSynchronize());
  return model;
}

Result<std::unique_ptr<BenchChain>> create_random(const m3::ModelConfig& config,
                                                  const RandomOptions& random,
                                                  const NativeOptions& options) {
  if (options.virtual_ranks != 1)
    return Status(Code::kInvalidArgument, "virtual_ranks",
                  "random weights are one rank's, or those of every rank of a group");
  try {
    auto chain = std::make_unique<Chain>(config, options, random);
    ML_RETURN_IF_ERROR(chain->open([&](const m3::RankShape& shape) {
      return Rank::create(config, shape, [&] {
        return DeviceModel::random(config, shape, random.seed, random.f32_router);
      });
    }));
    return std::unique_ptr<BenchChain>(std::move(chain));
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "CUDA chain", "no host memory for it");
  }
}

}  // namespace monolayer::cuda

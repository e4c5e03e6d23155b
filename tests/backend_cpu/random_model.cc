#include "backend_cpu/random_model.h"

#include <cmath>
#include <cstring>

namespace monolayer::test {
namespace {

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

}  // namespace

std::byte* RandomModel::allocate(std::size_t bytes) { return storage_.emplace_back(bytes).data(); }

TensorView RandomModel::vector(DType dtype, std::int64_t n, float mean, float deviation) {
  std::normal_distribution<float> normal(mean, deviation);
  const std::size_t size = dtype_size(dtype);
  std::byte* data = allocate(static_cast<std::size_t>(n) * size);
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = normal(random_);
    if (dtype == DType::kF32) {
      put(data + i * 4, value);
    } else {
      put(data + i * 2, f32_to_bf16(value));
    }
  }
  TensorView view;
  view.dtype = dtype;
  view.shape = {n};
  view.data = data;
  view.bytes = static_cast<std::size_t>(n) * size;
  view.name = "vector";
  return view;
}

QuantizedMatrix RandomModel::matrix(WeightFormat format, std::int64_t rows, std::int64_t cols,
                                    DType plain, float gain) {
  QuantizedMatrix out;
  out.format = format;
  out.rows = rows;
  out.cols = cols;
  const float deviation = gain / std::sqrt(static_cast<float>(cols));
  if (format == WeightFormat::kPlain) {
    out.weight = vector(plain, rows * cols, 0, deviation);
    out.weight.shape = {rows, cols};
    return out;
  }
  const bool packed = format == WeightFormat::kMXFP4;
  out.weight.dtype = packed ? DType::kU8 : DType::kE4M3;
  out.weight.shape = {rows, packed ? cols / 2 : cols};
  out.weight.bytes = static_cast<std::size_t>(rows * (packed ? cols / 2 : cols));
  std::byte* data = allocate(out.weight.bytes);
  for (std::size_t i = 0; i < out.weight.bytes; ++i) {
    auto code = static_cast<std::uint8_t>(random_());
    // Keep E4M3 codes off NaN and within +-2: sign, exponent 3..7, any mantissa.
    if (!packed) code = static_cast<std::uint8_t>((code & 0x87U) | (3U + random_() % 5) << 3);
    data[i] = static_cast<std::byte>(code);
  }
  out.weight.data = data;
  out.weight.name = "matrix";
  if (format == WeightFormat::kFP8PerChannel) {
    out.scale = vector(DType::kF32, rows, deviation, deviation / 4);
    for (std::int64_t i = 0; i < rows; ++i) {
      float scale = 0;
      std::memcpy(&scale, out.scale.data + i * 4, 4);
      put(const_cast<std::byte*>(out.scale.data) + i * 4, std::fabs(scale));
    }
    return out;
  }
  out.scale.dtype = DType::kU8;
  out.scale.shape = {rows, cols / 32};
  out.scale.bytes = static_cast<std::size_t>(rows * (cols / 32));
  std::byte* scales = allocate(out.scale.bytes);
  // Exponents that differ by up to 2^5 from group to group.
  const int base = 127 + static_cast<int>(std::floor(std::log2(deviation))) - (packed ? 3 : 2);
  for (std::size_t i = 0; i < out.scale.bytes; ++i) {
    scales[i] = static_cast<std::byte>(base - 3 + static_cast<int>(random_() % 6));
  }
  out.scale.data = scales;
  out.scale.name = "scale";
  return out;
}

m3::MlpWeights RandomModel::mlp(WeightFormat format, std::int64_t width) {
  m3::MlpWeights out;
  out.gate = matrix(format, width, config.hidden_size, DType::kBF16, 2);
  out.up = matrix(format, width, config.hidden_size);
  out.down = matrix(format, config.hidden_size, width);
  return out;
}

RandomModel::RandomModel(const m3::ModelConfig& model_config, const ModelFormats& formats,
                         std::uint64_t seed)
    : config(model_config), random_(seed) {
  const auto norm = [&](std::int64_t n) { return vector(DType::kBF16, n, 0, 0.2F); };
  const std::int64_t h = config.hidden_size;
  weights.embed = matrix(WeightFormat::kPlain, config.vocab_size, h, DType::kBF16,
                         std::sqrt(static_cast<float>(h)));
  weights.lm_head = matrix(WeightFormat::kPlain, config.vocab_size, h, DType::kBF16, 2);
  weights.final_norm = norm(h);
  for (const m3::LayerPattern& pattern : config.layers) {
    m3::LayerWeights& layer = weights.layers.emplace_back();
    layer.input_norm = norm(h);
    layer.post_norm = norm(h);
    layer.q = matrix(formats.attention, config.q_width(), h);
    layer.k = matrix(formats.attention, config.kv_width(), h);
    layer.v = matrix(formats.attention, config.kv_width(), h);
    layer.o = matrix(formats.attention, h, config.q_width());
    layer.q_norm = norm(config.head_dim);
    layer.k_norm = norm(config.head_dim);
    if (pattern.sparse_attention) {
      layer.index_q = matrix(formats.attention, config.index_width(), h);
      layer.index_k = matrix(formats.attention, config.index_dim, h);
      layer.index_q_norm = norm(config.index_dim);
      layer.index_k_norm = norm(config.index_dim);
    }
    if (!pattern.moe) {
      layer.dense = mlp(formats.dense, config.dense_width);
      continue;
    }
    layer.router = matrix(WeightFormat::kPlain, config.num_experts, h, formats.router, 2);
    if (config.routing_bias) layer.router_bias = vector(DType::kF32, config.num_experts, 0, 0.1F);
    for (std::int64_t e = 0; e < config.num_experts; ++e) {
      layer.experts.push_back(mlp(formats.experts, config.expert_width));
    }
    if (config.shared_width > 0) layer.shared = mlp(formats.shared, config.shared_width);
  }
}

m3::ModelConfig tiny_config() {
  m3::ModelConfig c;
  c.hidden_size = 96;
  c.num_layers = 3;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 32;
  c.rotary_dim = 16;
  c.rope_theta = 5e6;
  c.vocab_size = 150;
  c.max_positions = 65536;
  c.rms_eps = 1e-6F;
  c.dense_width = 160;
  c.expert_width = 64;
  c.shared_width = 96;
  c.num_experts = 7;
  c.experts_per_token = 3;
  c.routing_bias = true;
  c.routed_scale = 2;
  c.swiglu_alpha = 1.702F;
  c.swiglu_limit = 7;
  c.swiglu_beta = 1;
  c.index_heads = 2;
  c.index_dim = 32;
  c.block_size = 16;
  c.topk_blocks = 4;
  c.init_blocks = 0;
  c.local_blocks = 1;
  c.layers = {{false, false}, {true, true}, {true, true}};
  return c;
}

m3::ModelConfig nano_config() {
  m3::ModelConfig c = tiny_config();
  c.hidden_size = 256;
  c.num_heads = 8;
  c.num_kv_heads = 4;
  c.head_dim = 128;
  c.rotary_dim = 64;
  c.vocab_size = 512;
  c.max_positions = 1 << 20;
  c.dense_width = 512;
  c.expert_width = 256;
  c.shared_width = 256;
  c.num_experts = 16;
  c.experts_per_token = 4;
  c.index_heads = 4;
  c.index_dim = 128;
  c.block_size = 128;
  c.layers = {{false, false}, {false, false}, {false, false},
              {true, true},   {true, true},   {true, true}};
  c.num_layers = static_cast<std::int64_t>(c.layers.size());
  return c;
}

RotaryBytes::RotaryBytes(const m3::ModelConfig& config, DType dtype, std::uint64_t seed) {
  const auto pairs = static_cast<std::size_t>(config.rotary_dim / 2);
  const std::size_t unit = dtype_size(dtype), row = 2 * pairs * unit + 2 * unit;  // with a gap
  bytes_.resize(static_cast<std::size_t>(config.max_positions) * row);
  table_ = {bytes_.data(), dtype, config.max_positions, static_cast<std::int64_t>(row)};
  std::mt19937_64 random(seed);
  for (std::int64_t p = 0; p < config.max_positions; ++p) {
    std::byte* at = bytes_.data() + static_cast<std::size_t>(p) * row;
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(random() >> 40) * 0x1p-24 * 6.283185307179586;
      for (const bool sine : {false, true}) {
        const auto value = static_cast<float>(sine ? std::sin(angle) : std::cos(angle));
        std::byte* to = at + (i + (sine ? pairs : 0)) * unit;
        const bf16_t bits = f32_to_bf16(value);
        if (dtype == DType::kF32) {
          std::memcpy(to, &value, unit);
        } else {
          std::memcpy(to, &bits, unit);
        }
      }
    }
  }
}

std::vector<std::int32_t> random_tokens(const m3::ModelConfig& config, std::int64_t n,
                                        std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
  for (auto& token : tokens) {
    token = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(config.vocab_size));
  }
  return tokens;
}

}  // namespace monolayer::test

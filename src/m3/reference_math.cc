#include "m3/reference_math.h"

#include <algorithm>
#include <cmath>

namespace monolayer::m3 {

FloatMatrix decode(const QuantizedMatrix& matrix) {
  FloatMatrix result{matrix.rows, matrix.cols, {}};
  result.values.resize(static_cast<std::size_t>(matrix.rows * matrix.cols));
  if (!result.values.empty()) dequantize(matrix, 0, matrix.rows, result.values.data());
  return result;
}

std::vector<float> decode(const TensorView& tensor) {
  std::vector<float> result(static_cast<std::size_t>(tensor.shape.elements().value_or(0)));
  for (std::size_t i = 0; i < result.size(); ++i) {
    switch (tensor.dtype) {
      case DType::kF32:
        result[i] = tensor.as<float>()[i];
        break;
      case DType::kF16:
        result[i] = f16_to_f32(tensor.as<std::uint16_t>()[i]);
        break;
      default:
        result[i] = bf16_to_f32(tensor.as<bf16_t>()[i]);
        break;
    }
  }
  return result;
}

float dot(const float* a, const float* b, std::int64_t n) {
  // Four sums only so that the compiler may overlap the additions.
  double sum[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int j = 0; j < 4; ++j) sum[j] += static_cast<double>(a[i + j]) * b[i + j];
  }
  for (; i < n; ++i) sum[0] += static_cast<double>(a[i]) * b[i];
  return static_cast<float>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

void project(const FloatMatrix& w, const float* x, float* y) {
  for (std::int64_t o = 0; o < w.rows; ++o)
    y[o] = dot(&w.values[static_cast<std::size_t>(o * w.cols)], x, w.cols);
}

void gemma_norm(const float* x, std::span<const float> weight, float eps, float* out) {
  const auto n = static_cast<std::int64_t>(weight.size());
  const float mean = dot(x, x, n) / static_cast<float>(n);
  const float scale = 1.0F / std::sqrt(mean + eps);
  for (std::int64_t i = 0; i < n; ++i)
    out[i] = x[i] * scale * (1.0F + weight[static_cast<std::size_t>(i)]);
}

float clamped_swiglu(const ModelConfig& config, float gate, float up) {
  const float g = std::min(gate, config.swiglu_limit);
  const float u = std::clamp(up, -config.swiglu_limit, config.swiglu_limit);
  const float sigmoid = 1.0F / (1.0F + std::exp(-config.swiglu_alpha * g));
  return g * sigmoid * (u + config.swiglu_beta);
}

void attend(const float* query, std::span<const float> keys, std::span<const float> values,
            std::int64_t stride, std::int64_t offset, std::span<const std::int64_t> positions,
            std::int64_t head_dim, float scale, float* out) {
  std::vector<float> scores;
  float largest = -INFINITY;
  for (const std::int64_t p : positions) {
    scores.push_back(dot(query, &keys[static_cast<std::size_t>(p * stride + offset)], head_dim) *
                     scale);
    largest = std::max(largest, scores.back());
  }
  double total = 0;
  std::vector<double> sum(static_cast<std::size_t>(head_dim));
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const float weight = std::exp(scores[j] - largest);
    total += weight;
    const float* value = &values[static_cast<std::size_t>(positions[j] * stride + offset)];
    for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += static_cast<double>(weight) * value[d];
  }
  for (std::size_t d = 0; d < sum.size(); ++d) out[d] = static_cast<float>(sum[d] / total);
}

std::vector<RoutedExpert> route(const ModelConfig& config, std::span<const float> logits,
                                std::span<const float> bias) {
  std::vector<float> score;
  for (const float logit : logits) score.push_back(1.0F / (1.0F + std::exp(-logit)));
  std::vector<std::size_t> order(score.size());
  for (std::size_t e = 0; e < order.size(); ++e) order[e] = e;
  const auto key = [&](std::size_t e) { return score[e] + (bias.empty() ? 0.0F : bias[e]); };
  // Stable: the lower id wins ties.
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) > key(b); });
  order.resize(static_cast<std::size_t>(config.experts_per_token));
  std::sort(order.begin(), order.end());

  float total = 0;
  for (const std::size_t e : order) total += score[e];
  std::vector<RoutedExpert> chosen;
  chosen.reserve(order.size());
  for (const std::size_t e : order) {
    chosen.push_back({static_cast<std::int64_t>(e), config.routed_scale * (score[e] / total)});
  }
  return chosen;
}

}  // namespace monolayer::m3

// The operations of the reference, one obvious function each. Plain float32 in and out; sums over
// long dimensions are accumulated in double so that the order of addition does not matter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/quantized_tensor.h"
#include "m3/config.h"

namespace monolayer::m3 {

// A decoded matrix, [rows, cols] row-major.
struct FloatMatrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> values;
};
FloatMatrix decode(const QuantizedMatrix& matrix);
// Any plain tensor as float32.
std::vector<float> decode(const TensorView& tensor);

float dot(const float* a, const float* b, std::int64_t n);

// y[o] = dot(w[o], x), y [w.rows].
void project(const FloatMatrix& w, const float* x, float* y);

// out[i] = x[i] * rsqrt(mean(x^2) + eps) * (1 + weight[i]); `out` may be `x`.
void gemma_norm(const float* x, std::span<const float> weight, float eps, float* out);

// Clamped SwiGLU: g = min(gate, limit), u = clamp(up, +-limit): g * sigmoid(alpha g) * (u + beta).
float clamped_swiglu(const ModelConfig& config, float gate, float up);

// Softmax attention of one query over keys given by position.
// keys, values: [position, stride], the head's vector starts at `offset`. out [head_dim]. `scale`
// multiplies the products.
void attend(const float* query, std::span<const float> keys, std::span<const float> values,
            std::int64_t stride, std::int64_t offset, std::span<const std::int64_t> positions,
            std::int64_t head_dim, float scale, float* out);

struct RoutedExpert {
  std::int64_t id = 0;
  float weight = 0;  // routed_scale included
};
// The experts of one row, ascending ids. `logits` [num_experts]; `bias` [num_experts] or empty.
std::vector<RoutedExpert> route(const ModelConfig& config, std::span<const float> logits,
                                std::span<const float> bias);

}  // namespace monolayer::m3

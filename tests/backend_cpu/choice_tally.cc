#include "backend_cpu/choice_tally.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "checkpoint/quantized_tensor.h"
#include "core/dtype.h"

namespace monolayer::test {
namespace {

double largest_norm(const TensorView& weight) {
  float largest = 0;
  for (std::size_t i = 0; i < weight.bytes / 2; ++i) {
    largest = std::max(largest, std::fabs(1 + bf16_to_f32(weight.as<bf16_t>()[i])));
  }
  return largest;
}

double largest_row(const QuantizedMatrix& matrix) {
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  double largest = 0;
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    dequantize(matrix, r, r + 1, row.data());
    double sum = 0;
    for (const float x : row) sum += double{x} * x;
    largest = std::max(largest, sum);
  }
  return std::sqrt(largest);
}

}  // namespace

double block_deviation(const m3::ModelConfig& config, const m3::LayerWeights& weights) {
  return std::sqrt(static_cast<double>(config.index_dim)) * largest_norm(weights.index_q_norm) *
         largest_norm(weights.index_k_norm);
}

double expert_deviation(const m3::LayerWeights& weights) {
  return largest_row(weights.router) * largest_norm(weights.post_norm) / 4;
}

std::vector<std::int32_t> difference(std::span<const std::int32_t> a,
                                     std::span<const std::int32_t> b) {
  std::vector<std::int32_t> out;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

void Tally::compare(std::span<const float> scores, std::span<const std::int32_t> lost,
                    std::span<const std::int32_t> won, double deviation) {
  ++compared;
  if (!lost.empty()) ++differ;
  for (const std::int32_t l : lost) {
    for (const std::int32_t w : won) {
      const double gap =
          double{scores[static_cast<std::size_t>(l)]} - scores[static_cast<std::size_t>(w)];
      largest_gap = std::max(largest_gap, gap / deviation);
    }
  }
}

double Tally::share() const { return static_cast<double>(differ) / static_cast<double>(compared); }

std::string Tally::text() const {
  char buffer[96];
  std::snprintf(buffer, sizeof buffer, "%ld of %ld differ, gap %.3g", static_cast<long>(differ),
                static_cast<long>(compared), largest_gap);
  return buffer;
}

}  // namespace monolayer::test

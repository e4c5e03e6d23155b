// A model whose logits have ties for their largest in every row, and the choice among them.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "backend_cpu/random_model.h"

namespace monolayer::test {

// A second way to choose greedily: the lowest id of the largest value.
inline std::int32_t first_largest(std::span<const float> row) {
  std::int32_t best = 0;
  for (std::size_t i = 1; i < row.size(); ++i)
    if (row[i] > row[static_cast<std::size_t>(best)]) best = static_cast<std::int32_t>(i);
  return best;
}

// The head has 23 different rows, over and over.
class TiedModel {
 public:
  explicit TiedModel(const m3::ModelConfig& shape)
      : model_(shape, {}, 3), weights(model_.weights), config(model_.config) {
    TensorView& head = weights.lm_head.weight;
    const std::size_t row = static_cast<std::size_t>(config.hidden_size) * 2;
    bytes_.resize(head.bytes);
    for (std::size_t i = 0; i < bytes_.size() / row; ++i)
      std::memcpy(bytes_.data() + i * row, head.data + (i * 7 % 23 + 20) * row, row);
    head.data = bytes_.data();
  }

 private:
  RandomModel model_;
  std::vector<std::byte> bytes_;

 public:
  m3::ModelWeights weights;
  const m3::ModelConfig& config;
};

}  // namespace monolayer::test

// Models of any shape with random weights in memory, for tests that need no file.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "m3/config.h"
#include "m3/rope.h"
#include "m3/weights.h"

namespace monolayer::test {

struct ModelFormats {
  WeightFormat attention = WeightFormat::kPlain;
  WeightFormat dense = WeightFormat::kPlain;
  WeightFormat experts = WeightFormat::kPlain;
  WeightFormat shared = WeightFormat::kPlain;
  DType router = DType::kF32;
};

// Owns the bytes behind `weights`. Values are scaled so that activations stay near one.
class RandomModel {
 public:
  RandomModel(const m3::ModelConfig& model_config, const ModelFormats& formats, std::uint64_t seed);

  m3::ModelConfig config;
  m3::ModelWeights weights;

 private:
  std::byte* allocate(std::size_t bytes);
  TensorView vector(DType dtype, std::int64_t n, float mean, float deviation);
  QuantizedMatrix matrix(WeightFormat format, std::int64_t rows, std::int64_t cols,
                         DType plain = DType::kBF16, float gain = 1);
  m3::MlpWeights mlp(WeightFormat format, std::int64_t width);

  std::mt19937_64 random_;
  std::deque<std::vector<std::byte>> storage_;
};

// Three layers (one dense, two sparse with experts), head 32, block 16, top 4: every mechanism at a
// size where a step takes a millisecond.
m3::ModelConfig tiny_config();
// The proportions of the embedded model: 3 dense and 3 sparse layers, 8 query, 4 KV and 4 index
// heads of 128, block 128, top 4, 16 experts.
m3::ModelConfig nano_config();

// A rotary table over every position of a model: each pair turned by a random angle.
class RotaryBytes {
 public:
  RotaryBytes(const m3::ModelConfig& config, DType dtype, std::uint64_t seed);
  m3::RotaryTable table() const { return table_; }

 private:
  std::vector<std::byte> bytes_;
  m3::RotaryTable table_;
};

std::vector<std::int32_t> random_tokens(const m3::ModelConfig& config, std::int64_t n,
                                        std::uint64_t seed);

}  // namespace monolayer::test

// Rotary position embedding: half-split pairs over the leading rotary_dim values of a head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"

namespace monolayer::m3 {

// Cosines and sines that someone else has made: [positions, rotary_dim], a row's cosines then its
// sines, BF16 or F32, rows `row_bytes` apart. Borrowed; null: none.
struct RotaryTable {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t positions = 0, row_bytes = 0;
};

// Frequencies in float32 as published implementations compute them: 1 / float(theta^(2i/rotary)),
// i in [0, rotary_dim / 2); the angle is the float32 product of position and frequency.
class Rope {
 public:
  // With a table: its values, whatever theta is. Positions must then lie within it.
  Rope(double theta, std::int64_t rotary_dim, const RotaryTable& table = {});

  std::int64_t pairs() const { return static_cast<std::int64_t>(frequencies_.size()); }
  std::span<const float> frequencies() const { return frequencies_; }
  // Cosines and sines of one position, [pairs()] each.
  void angles(std::int64_t position, float* cosines, float* sines) const;

 private:
  std::vector<float> frequencies_;
  RotaryTable table_;
};

// Rotates head[0, 2 * pairs) in place: pair i is (i, i + pairs). Plain float32 products and sums:
//   head[i] = x * cos - y * sin;  head[i + pairs] = y * cos + x * sin.
void rotate(float* head, const float* cosines, const float* sines, std::int64_t pairs);

}  // namespace monolayer::m3

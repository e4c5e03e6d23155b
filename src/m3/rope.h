// Rotary position embedding: half-split pairs over the leading rotary_dim values of a head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace monolayer::m3 {

// Frequencies in float32 as published implementations compute them: 1 / float(theta^(2i/rotary)),
// i in [0, rotary_dim / 2); the angle is the float32 product of position and frequency.
class Rope {
 public:
  Rope(double theta, std::int64_t rotary_dim);

  std::int64_t pairs() const { return static_cast<std::int64_t>(frequencies_.size()); }
  std::span<const float> frequencies() const { return frequencies_; }
  // Cosines and sines of one position, [pairs()] each.
  void angles(std::int64_t position, float* cosines, float* sines) const;

 private:
  std::vector<float> frequencies_;
};

// Rotates head[0, 2 * pairs) in place: pair i is (i, i + pairs). Plain float32 products and sums:
//   head[i] = x * cos - y * sin;  head[i + pairs] = y * cos + x * sin.
void rotate(float* head, const float* cosines, const float* sines, std::int64_t pairs);

}  // namespace monolayer::m3

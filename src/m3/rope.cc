#include "m3/rope.h"

#include <cmath>
#include <cstddef>
#include <cstring>

namespace monolayer::m3 {

Rope::Rope(double theta, std::int64_t rotary_dim, const RotaryTable& table) : table_(table) {
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    const auto power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    frequencies_.push_back(1.0F / power);
  }
}

void Rope::angles(std::int64_t position, float* cosines, float* sines) const {
  if (table_.data != nullptr) {
    const auto* row = static_cast<const std::byte*>(table_.data) + position * table_.row_bytes;
    const bool wide = table_.dtype == DType::kF32;
    for (std::size_t i = 0; i < 2 * frequencies_.size(); ++i) {
      float& out = i < frequencies_.size() ? cosines[i] : sines[i - frequencies_.size()];
      if (wide) {
        std::memcpy(&out, row + i * sizeof out, sizeof out);
      } else {
        bf16_t bits = 0;
        std::memcpy(&bits, row + i * sizeof bits, sizeof bits);
        out = bf16_to_f32(bits);
      }
    }
    return;
  }
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    // Only the product is float32; the functions themselves are taken in double and rounded once.
    const float angle = static_cast<float>(position) * frequencies_[i];
    cosines[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
    sines[i] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

void rotate(float* head, const float* cosines, const float* sines, std::int64_t pairs) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float x = head[i];
    const float y = head[i + pairs];
    head[i] = x * cosines[i] - y * sines[i];
    head[i + pairs] = y * cosines[i] + x * sines[i];
  }
}

}  // namespace monolayer::m3

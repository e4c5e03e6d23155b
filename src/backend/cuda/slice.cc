#include "backend/cuda/slice.h"

#include "core/dtype.h"

namespace monolayer::cuda {

StoredRow stored_row(const Slice& s, std::int64_t row) {
  if (row >= s.rows) return {};
  const QuantizedMatrix& m = *s.m;
  const auto* data = reinterpret_cast<const std::byte*>(m.weight.data);
  const std::int64_t first = (s.first_row + row) * m.cols + s.first_col;
  switch (m.format) {
    case WeightFormat::kMXFP4:
      return {data + first / 2, reinterpret_cast<const std::uint8_t*>(m.scale.data) + first / 32};
    case WeightFormat::kMXFP8:
      return {data + first, reinterpret_cast<const std::uint8_t*>(m.scale.data) + first / 32};
    case WeightFormat::kFP8PerChannel:
      return {data + first, nullptr};
    default:
      return {data + first * static_cast<std::int64_t>(dtype_size(m.weight.dtype)), nullptr};
  }
}

void add_row_scales(const Slice& s, std::vector<float>& scales) {
  if (s.m->format != WeightFormat::kFP8PerChannel) return;
  const float* from = s.m->scale.as<float>() + s.first_row;
  scales.insert(scales.end(), from, from + s.rows);
}

}  // namespace monolayer::cuda

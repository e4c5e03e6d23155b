// The rows and columns of stored matrices that one rank of a tensor-parallel group holds.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/pack.h"
#include "checkpoint/quantized_tensor.h"

namespace monolayer::cuda {

// Borrows the matrix. Columns begin and end at whole units of 32, unless they are all there are.
struct Slice {
  const QuantizedMatrix* m = nullptr;
  std::int64_t first_row = 0, rows = 0, first_col = 0, cols = 0;

  bool empty() const { return m == nullptr || m->empty(); }
};

inline Slice whole_slice(const QuantizedMatrix& m) { return {&m, 0, m.rows, 0, m.cols}; }
inline Slice row_slice(const QuantizedMatrix& m, std::int64_t first, std::int64_t count) {
  return {&m, first, count, 0, m.cols};
}
inline Slice column_slice(const QuantizedMatrix& m, std::int64_t first, std::int64_t count) {
  return {&m, 0, m.rows, first, count};
}

// Row `row` of the slice as pack() takes it; past the last one zeros.
StoredRow stored_row(const Slice& slice, std::int64_t row);
// Appends the float32 factors of the slice's rows, if the format has any.
void add_row_scales(const Slice& slice, std::vector<float>& scales);

}  // namespace monolayer::cuda

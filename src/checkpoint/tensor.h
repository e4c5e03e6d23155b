// Borrowed tensors: dtype, shape and where the bytes are. Nothing here owns or copies data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/status.h"

namespace monolayer {

// Up to kMaxRank dimensions, outermost first, each 0 or more.
class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  // At most kMaxRank dimensions; further ones are dropped.
  Shape(std::initializer_list<std::int64_t> dims) {
    for (const std::int64_t dim : dims) push_back(dim);
  }
  // False, and unchanged, when the shape is full.
  bool push_back(std::int64_t dim) {
    if (rank_ == kMaxRank) return false;
    dims_[static_cast<std::size_t>(rank_++)] = dim;
    return true;
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return dims_[static_cast<std::size_t>(axis)]; }
  void set(int axis, std::int64_t dim) { dims_[static_cast<std::size_t>(axis)] = dim; }
  const std::int64_t* begin() const { return dims_.data(); }
  const std::int64_t* end() const { return dims_.data() + rank_; }

  // Product of the dimensions (1 for a scalar, 0 if any dimension is 0); nullopt when it does not
  // fit in 63 bits or a dimension is negative.
  std::optional<std::int64_t> elements() const;
  // The same shape without its first axis; a scalar stays a scalar.
  Shape without_first() const;
  std::string to_string() const;  // "[3072, 192]"

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// One stored tensor, row-major. Valid while the checkpoint or file it came from lives.
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;                      // of stored units: packed FP4 counts bytes
  const std::byte* data = nullptr;  // a multiple of dtype_size(dtype)
  std::size_t bytes = 0;
  std::string_view name;  // as in the file; slices keep their parent's name
  std::string_view file;

  bool empty() const { return data == nullptr; }
  // Only with a T of the stored size.
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
};

// kInvalidFile naming file, tensor, what is stored and what was expected.
Status expect_dtype(const TensorView& tensor, DType dtype);
Status expect_shape(const TensorView& tensor, const Shape& shape);

// Rows [begin, end) of the first axis. kInvalidArgument outside 0 <= begin <= end <= shape[0].
Result<TensorView> slice_rows(const TensorView& tensor, std::int64_t begin, std::int64_t end);
// Entry `index` of the first axis, which disappears: [E, rows, cols] gives [rows, cols].
Result<TensorView> select_first(const TensorView& tensor, std::int64_t index);

}  // namespace monolayer

// Every variant returns the scalar variant's bits, and nothing outside the operands is touched.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tiles_differential.h"

namespace monolayer::cpu::test {
namespace {

TEST(TilesVariants, ReturnTheBitsOfTheScalarOne) {
  for (const Tiles* tiles : available_tiles()) {
    Random random(11);
    for (int i = 0; i < 1500; ++i) {
      ASSERT_EQ(compare_random_call(random, *tiles, *find_tiles("scalar")), "")
          << tiles->name << " call " << i;
    }
  }
}

// The harness itself must notice one wrong bit.
TEST(TilesVariants, ADifferenceIsFound) {
  Tiles broken = *find_tiles("scalar");
  broken.sum_squares = [](const float* x, std::int64_t n) {
    return std::nextafter(find_tiles("scalar")->sum_squares(x, n), 0.0F);
  };
  Random random(12);
  int found = 0;
  for (int i = 0; i < 300; ++i) {
    found += !compare_random_call(random, broken, *find_tiles("scalar")).empty();
  }
  EXPECT_GT(found, 0);
}

// Bytes flush against an inaccessible page, at their end or at their start.
class Guarded {
 public:
  Guarded(const void* from, std::size_t size, bool at_end) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inside = (size + page - 1) / page * page + page;
    mapped_ = inside + 2 * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + page, inside, PROT_READ | PROT_WRITE);
    data_ = at_end ? base_ + page + inside - size : base_ + page;
    if (from != nullptr) std::memcpy(data_, from, size);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, mapped_); }
  std::byte* data() const { return data_; }
  float* as_floats() const { return reinterpret_cast<float*>(data_); }

 private:
  std::byte* base_;
  std::byte* data_;
  std::size_t mapped_;
};

TEST(TilesVariants, ReadAndWriteOnlyTheirOperands) {
  Random random(13);
  for (const Tiles* tiles : available_tiles()) {
    for (int round = 0; round < 300; ++round) {
      const Format format = kFormats[round % 5];
      const std::int64_t rows = pick(random, 1, 5);
      const std::int64_t cols = pick(random, 1, 400);
      const std::int64_t batch = pick(random, 1, 6);
      const bool at_end = round / 5 % 2 == 0;
      const MatrixCase w(random, format, rows, cols, Content::kTame);
      const std::int64_t bytes = (rows - 1) * w.view.row_bytes + row_size(format, cols);
      const Guarded data(w.view.data, static_cast<std::size_t>(bytes), at_end);
      Matrix guarded = w.view;
      guarded.data = data.data();
      std::int64_t scale_bytes = rows * 4;
      if (is_mx(format)) scale_bytes = (rows - 1) * w.view.scale_row_bytes + groups(cols);
      const Guarded scales(w.view.scales,
                           w.view.scales == nullptr ? 0 : static_cast<std::size_t>(scale_bytes),
                           at_end);
      if (w.view.scales != nullptr) guarded.scales = scales.data();
      const std::int64_t padded = padded_columns(format, cols);
      const std::vector<float> x = floats(random, cols, Content::kTame);
      const Guarded x_in(x.data(), x.size() * 4, at_end);
      const Guarded xp(nullptr, static_cast<std::size_t>(batch * padded) * 4, at_end);
      const Guarded y(nullptr, static_cast<std::size_t>(batch * rows) * 4, at_end);
      for (std::int64_t r = 0; r < batch; ++r) {
        tiles->permute(format, x_in.as_floats(), cols, xp.as_floats() + r * padded);
      }
      tiles->matmul(guarded, 0, rows, 0, cols, xp.as_floats(), padded, batch, y.as_floats(), rows);
      const std::vector<float> p = floats(random, rows, Content::kTame);
      const Guarded p_in(p.data(), p.size() * 4, at_end);
      const Guarded out(nullptr, static_cast<std::size_t>(cols) * 4, at_end);
      if (!is_mx(format)) tiles->weighted_sum(guarded, p_in.as_floats(), out.as_floats());

      const std::vector<std::uint16_t> weight(static_cast<std::size_t>(cols), 0x3f80);
      const Guarded norm(weight.data(), weight.size() * 2, at_end);
      tiles->scale_by_norm(x_in.as_floats(), 1.0F,
                           reinterpret_cast<const std::uint16_t*>(norm.data()), cols,
                           out.as_floats());
      tiles->swiglu(x_in.as_floats(), x_in.as_floats(), cols, 1.0F, 7.0F, 1.0F, out.as_floats());
      float max = 0;
      float sum = 0;
      tiles->softmax_chunk(x_in.as_floats(), cols, out.as_floats(), &max, &sum);
      EXPECT_EQ(tiles->maximum(x_in.as_floats(), cols), max);
      EXPECT_GE(tiles->sum_squares(x_in.as_floats(), cols), 0.0F);

      // Two parts, the first of whole groups.
      if (cols < 64) continue;
      const std::int64_t columns[] = {0, cols / 2 / 32 * 32, cols};
      const std::int64_t first = padded_columns(format, columns[1]);
      const std::int64_t offsets[] = {0, first};
      const Guarded parts_x(
          nullptr, static_cast<std::size_t>(first + padded_columns(format, cols - columns[1])) * 4,
          at_end);
      const Guarded parts_y(nullptr, static_cast<std::size_t>(rows) * 8, at_end);
      tiles->matmul_split(guarded, 0, rows, columns, offsets, 2, parts_x.as_floats(),
                          parts_y.as_floats());
    }
  }
}

}  // namespace
}  // namespace monolayer::cpu::test

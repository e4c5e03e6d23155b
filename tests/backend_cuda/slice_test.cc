// What a rank packs of a matrix: the whole matrix's rows and columns, wherever they lie there.
#include "backend/cuda/slice.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "backend/cuda/pack.h"

namespace monolayer::test {
namespace {

struct Stored {
  std::vector<std::byte> data, scales;
  QuantizedMatrix m;
};

Stored stored(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  Stored s;
  std::mt19937 random(7);
  std::int64_t bytes = rows * cols * 2;
  if (format == WeightFormat::kMXFP4) bytes = rows * cols / 2;
  if (format == WeightFormat::kFP8PerChannel || format == WeightFormat::kMXFP8) bytes = rows * cols;
  s.data.resize(static_cast<std::size_t>(bytes));
  for (std::byte& b : s.data) b = static_cast<std::byte>(random() & 0x3F);
  s.scales.resize(static_cast<std::size_t>(rows * std::max<std::int64_t>(4, cols / 32)));
  for (std::byte& b : s.scales) b = static_cast<std::byte>(random() & 0x3F);
  s.m.format = format;
  s.m.rows = rows;
  s.m.cols = cols;
  s.m.weight.dtype = format == WeightFormat::kPlain ? DType::kBF16 : DType::kE4M3;
  s.m.weight.data = s.data.data();
  s.m.weight.bytes = s.data.size();
  s.m.scale.data = s.scales.data();
  s.m.scale.bytes = s.scales.size();
  return s;
}

std::vector<unsigned char> packed(const cuda::Slice& slice, int parts, cuda::Matrix& m) {
  m = cuda::describe(*cuda::pack_format(*slice.m), slice.rows, slice.cols, parts);
  std::vector<unsigned char> out(static_cast<std::size_t>(cuda::packed_bytes(m)));
  cuda::pack(
      m, [&](std::int64_t row) { return cuda::stored_row(slice, row); }, out.data());
  return out;
}

class RankSlices : public testing::TestWithParam<WeightFormat> {};

// The eighths that a rank packs are the bytes of those eighths of the whole.
TEST_P(RankSlices, ColumnsAreTheWholesEighths) {
  const Stored s = stored(GetParam(), 48, 1024);
  cuda::Matrix all;
  const auto whole = packed(cuda::whole_slice(s.m), 8, all);
  for (const int ranks : {1, 2, 4, 8}) {
    for (int r = 0; r < ranks; ++r) {
      cuda::Matrix m;
      const auto own =
          packed(cuda::column_slice(s.m, r * 1024 / ranks, 1024 / ranks), 8 / ranks, m);
      ASSERT_EQ(all.tiles, m.tiles);
      ASSERT_EQ(all.row_groups, m.row_groups);
      const auto part = static_cast<std::size_t>(m.tiles) * static_cast<std::size_t>(m.tile_bytes);
      for (int g = 0; g < m.row_groups; ++g) {
        EXPECT_EQ(0, std::memcmp(own.data() + g * m.group_bytes,
                                 whole.data() + g * all.group_bytes +
                                     static_cast<std::size_t>(r * m.parts) * part,
                                 static_cast<std::size_t>(m.group_bytes)))
            << ranks << " ranks, rank " << r << ", group " << g;
      }
    }
  }
}

TEST_P(RankSlices, RowsAreTheWholesRows) {
  const Stored s = stored(GetParam(), 96, 256);
  cuda::Matrix all;
  const auto whole = packed(cuda::whole_slice(s.m), 8, all);
  std::vector<float> scales;
  cuda::add_row_scales(cuda::whole_slice(s.m), scales);
  for (const int first : {0, 32, 80}) {
    cuda::Matrix m;
    const cuda::Slice slice = cuda::row_slice(s.m, first, 16);
    const auto own = packed(slice, 8, m);
    EXPECT_EQ(0, std::memcmp(own.data(), whole.data() + first / 16 * all.group_bytes, own.size()));
    std::vector<float> mine;
    cuda::add_row_scales(slice, mine);
    EXPECT_EQ(mine.empty(), GetParam() != WeightFormat::kFP8PerChannel);
    for (std::size_t i = 0; i < mine.size(); ++i)
      EXPECT_EQ(std::bit_cast<std::uint32_t>(mine[i]),
                std::bit_cast<std::uint32_t>(scales[static_cast<std::size_t>(first) + i]));
  }
}

TEST_P(RankSlices, NothingBeyondTheLastRow) {
  const Stored s = stored(GetParam(), 32, 64);
  EXPECT_EQ(nullptr, cuda::stored_row(cuda::row_slice(s.m, 8, 8), 8).data);
  EXPECT_NE(nullptr, cuda::stored_row(cuda::row_slice(s.m, 8, 8), 7).data);
}

INSTANTIATE_TEST_SUITE_P(Formats, RankSlices,
                         testing::Values(WeightFormat::kPlain, WeightFormat::kMXFP4,
                                         WeightFormat::kMXFP8, WeightFormat::kFP8PerChannel));

}  // namespace
}  // namespace monolayer::test

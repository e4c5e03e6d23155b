// The packed layout against the fragment layout of the tensor instruction, computed the slow way:
// decode every word as the kernels do and find each stored value at its place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "backend/cuda/pack.h"
#include "core/dtype.h"

namespace monolayer::cuda {
namespace {

float bf16_value(std::uint32_t bits) { return bf16_to_f32(static_cast<bf16_t>(bits)); }

// What lane `lane` holds for the k-th of its eight columns of group `group`, row half `high`.
float packed_value(const Matrix& m, const unsigned char* tile, int group, int lane, int high,
                   int k) {
  std::uint32_t word = 0;
  const int mma = k / 4;       // which product
  const int pair = k % 4 / 2;  // first or second register of the row
  const int half = k % 2;
  const auto read = [&](int at) { std::memcpy(&word, tile + at, 4); };
  if (m.format == Format::kMXFP4) {
    read(lane * 16 + (group * 2 + mma) * 4);
    const int r = high + 2 * pair;
    std::uint32_t a = 0;
    switch (r) {
      case 0:
        a = word & 0x81C081C0U;
        break;
      case 1:
        a = (word << 6) & 0x81C081C0U;
        break;
      case 2:
        a = (word >> 6 | word << 26) & 0x81C081C0U;
        break;
      default:
        a = ((word << 4) & 0x81808180U) | ((word >> 4) & 0x00400040U);
    }
    const std::uint8_t scale = tile[512 + lane / 4 * 4 + high * 2 + group];
    return bf16_value(a >> (16 * half)) * 0x1p126F * e8m0_to_f32(scale);
  }
  if (m.format == Format::kMXFP8) {
    read(lane * 16 + (mma * 2 + high) * 4);
    return e4m3_to_f32(static_cast<std::uint8_t>(word >> (16 * pair + 8 * half))) *
           e8m0_to_f32(tile[512 + lane / 4 * 2 + high]);
  }
  if (is_e4m3(m.format)) {
    read(lane * 16 + (mma * 2 + high) * 4);
    return e4m3_to_f32(static_cast<std::uint8_t>(word >> (16 * pair + 8 * half)));
  }
  read(mma * 512 + lane * 16 + (high + 2 * pair) * 4);
  return bf16_value(word >> (16 * half));
}

struct Case {
  Format format;
  std::int64_t rows, cols;
  int parts;
};

class Pack : public testing::TestWithParam<Case> {};

TEST_P(Pack, EveryValueAtItsPlace) {
  const Case& test = GetParam();
  std::mt19937 random(7);
  const Matrix m = describe(test.format, test.rows, test.cols, test.parts);
  const auto n = static_cast<std::size_t>(test.rows * test.cols);
  std::vector<std::uint8_t> codes(n * 4);
  std::vector<std::uint8_t> scales(n / 32 + 1);
  std::vector<float> values(n);
  for (auto& s : scales) s = static_cast<std::uint8_t>(110 + random() % 20);
  for (std::size_t i = 0; i < n; ++i) {
    switch (test.format) {
      case Format::kMXFP4: {
        const std::uint32_t code = random() % 16;
        if (i % 2 == 0) codes[i / 2] = 0;
        codes[i / 2] = static_cast<std::uint8_t>(codes[i / 2] | code << (i % 2 * 4));
        values[i] = e2m1_to_f32(static_cast<std::uint8_t>(code)) * e8m0_to_f32(scales[i / 32]);
        break;
      }
      case Format::kMXFP8:
      case Format::kE4M3:
      case Format::kE4M3Half: {
        auto code = static_cast<std::uint8_t>(random());
        if ((code & 0x7f) == 0x7f) code = 0;
        codes[i] = code;
        values[i] = e4m3_to_f32(code);
        if (test.format == Format::kMXFP8) values[i] *= e8m0_to_f32(scales[i / 32]);
        break;
      }
      case Format::kBF16: {
        const bf16_t code = f32_to_bf16(static_cast<float>(random()) * 0x1p-31F - 1);
        std::memcpy(&codes[i * 2], &code, 2);
        values[i] = bf16_to_f32(code);
        break;
      }
      case Format::kF32: {
        values[i] = static_cast<float>(random()) * 0x1p-31F - 1;
        std::memcpy(&codes[i * 4], &values[i], 4);
        break;
      }
    }
  }
  const std::int64_t row_bytes = test.format == Format::kMXFP4 ? test.cols / 2
                                 : test.format == Format::kMXFP8 || is_e4m3(test.format) ? test.cols
                                 : test.format == Format::kBF16 ? test.cols * 2
                                                                : test.cols * 4;
  std::vector<unsigned char> out(static_cast<std::size_t>(packed_bytes(m)), 0xEE);
  pack(
      m,
      [&](std::int64_t row) {
        if (row >= test.rows) return StoredRow{};
        return StoredRow{reinterpret_cast<const std::byte*>(codes.data()) + row * row_bytes,
                         scales.data() + row * test.cols / 32};
      },
      out.data());
  const int planes = test.format == Format::kF32 ? 3 : 1;
  const int tile_cols = test.format == Format::kMXFP4 ? 64 : 32;
  const std::int64_t units = test.cols / 32;
  std::size_t seen = 0;
  for (int part = 0; part < m.parts; ++part) {
    const std::int64_t begin = part * units / m.parts * 32;
    const std::int64_t end = (part + 1) * units / m.parts * 32;
    for (std::int64_t c = begin; c < end; ++c) {
      for (std::int64_t row = 0; row < test.rows; ++row) {
        const auto in = static_cast<int>(c - begin);
        float got = 0;
        for (int plane = 0; plane < planes; ++plane) {
          const int tile = in / tile_cols * planes + plane;
          const std::int64_t at = row / 16 * m.group_bytes +
                                  (part * m.tiles + tile) * static_cast<std::int64_t>(m.tile_bytes);
          const int group = in % tile_cols / 32;
          const int lane = static_cast<int>(row % 8) * 4 + in % 32 / 8;
          got +=
              packed_value(m, out.data() + at, group, lane, static_cast<int>(row % 16 / 8), in % 8);
        }
        ASSERT_EQ(got, values[static_cast<std::size_t>(row * test.cols + c)]) << row << " " << c;
        ++seen;
      }
    }
  }
  EXPECT_EQ(seen, n);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Pack,
    testing::Values(Case{Format::kMXFP4, 32, 1024, 8}, Case{Format::kMXFP4, 24, 96, 8},
                    Case{Format::kMXFP4, 16, 768, 2}, Case{Format::kMXFP8, 32, 1024, 8},
                    Case{Format::kMXFP8, 24, 96, 8}, Case{Format::kMXFP8, 16, 768, 2},
                    Case{Format::kE4M3, 48, 768, 8}, Case{Format::kE4M3, 16, 2048, 2},
                    Case{Format::kE4M3Half, 32, 1536, 4}, Case{Format::kBF16, 20, 192, 8},
                    Case{Format::kBF16, 8, 1536, 16}, Case{Format::kF32, 12, 256, 16}));

// Large enough for several threads, against its row groups one by one.
TEST(PackLarge, RowGroupsAreThoseOfSmallMatrices) {
  constexpr std::int64_t kRows = 1024, kCols = 6144;
  std::vector<std::byte> codes(kRows * kCols / 2);
  std::vector<std::uint8_t> scales(kRows * kCols / 32);
  std::mt19937 random(9);
  for (std::byte& b : codes) b = static_cast<std::byte>(random());
  for (std::uint8_t& s : scales) s = static_cast<std::uint8_t>(100 + random() % 40);
  const auto row = [&](std::int64_t i) {
    return StoredRow{codes.data() + i * kCols / 2, scales.data() + i * kCols / 32};
  };
  const Matrix m = describe(Format::kMXFP4, kRows, kCols, 8);
  ASSERT_GT(packed_bytes(m), 3 << 20);
  std::vector<unsigned char> whole(static_cast<std::size_t>(packed_bytes(m)));
  pack(m, row, whole.data());
  const Matrix one = describe(Format::kMXFP4, 16, kCols, 8);
  ASSERT_EQ(packed_bytes(one), m.group_bytes);
  std::vector<unsigned char> group(static_cast<std::size_t>(packed_bytes(one)));
  for (std::int64_t g = 0; g < m.row_groups; ++g) {
    pack(
        one, [&](std::int64_t i) { return row(g * 16 + i); }, group.data());
    ASSERT_TRUE(std::equal(group.begin(), group.end(), whole.begin() + g * m.group_bytes)) << g;
  }
}

// Every divisor that device code may ask for, at every multiple and beside it.
TEST(Divider, GivesQuotientsOfNumbersBelow65536) {
  EXPECT_EQ(divider(1), 0U);  // asked for separately
  for (int divisor = 2; divisor < 65536; ++divisor) {
    const std::uint64_t magic = divider(divisor);
    const auto quotient = [&](int n) {
      return static_cast<int>(static_cast<std::uint64_t>(n) * magic >> 32);
    };
    for (int n = 0; n < 65536; n += divisor) {
      ASSERT_EQ(quotient(n), n / divisor) << n << " / " << divisor;
      const int last = std::min(n + divisor, 65536) - 1;
      ASSERT_EQ(quotient(last), n / divisor) << last << " / " << divisor;
    }
  }
}

TEST(Divider, IsThatOfAMatrix) {
  const Matrix m = describe(Format::kMXFP4, 1536, 1024, 2);
  EXPECT_EQ(m.groups_divider, divider(96));
  EXPECT_EQ(m.vectors_divider, divider(128));
}

// Whatever is at most the bound stays finite in FP16, and the scale is the largest power that says
// so.
TEST(HalfScale, LargestPowerOfTwoThatFits) {
  for (const float bound :
       {1e-25F, 4.5e-8F, 0x1p-9F, 1.0F, 78.4F, 448.0F, 8.96F, 32768.0F, 1e6F, 1e11F}) {
    const float scale = half_scale(bound);
    int exponent = 0;
    EXPECT_EQ(0.5F, std::frexp(scale, &exponent)) << bound;
    EXPECT_LE(bound * scale, 32768.0F) << bound;
    EXPECT_GT(bound * scale * 2, 32768.0F) << bound;
  }
  EXPECT_EQ(0.0F, half_scale(std::numeric_limits<float>::quiet_NaN()));
  EXPECT_EQ(0.0F, half_scale(std::numeric_limits<float>::infinity()));
  EXPECT_EQ(0.0F, half_scale(1e12F));
}

// The largest activation of many gates and ups is near the bound and never above.
TEST(ActivationBound, HoldsForEveryGateAndUp) {
  for (const auto& [alpha, limit, beta] :
       {std::tuple{1.702F, 7.0F, 1.0F}, {1.0F, 7.0F, 0.0F}, {0.02F, 1.0F, -3.0F}}) {
    const float bound = activation_bound(alpha, limit, beta);
    float most = 0;
    for (int i = -100000; i <= 100000; ++i) {
      const double gate = std::min(static_cast<double>(limit), i / 100.0);
      const double up = limit + std::fabs(beta);
      most =
          std::max(most, static_cast<float>(std::fabs(gate / (1 + std::exp(-alpha * gate)) * up)));
    }
    EXPECT_LE(most, bound);
    EXPECT_GT(most, 0.99F * bound);
  }
  EXPECT_TRUE(std::isinf(activation_bound(0, 7, 1)));
  EXPECT_TRUE(std::isinf(activation_bound(-1, 7, 1)));
  EXPECT_TRUE(std::isinf(activation_bound(1, -7, 1)));
  EXPECT_EQ(0, half_scale(activation_bound(0, 7, 1)));
}

}  // namespace
}  // namespace monolayer::cuda

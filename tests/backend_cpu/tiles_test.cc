// Every variant of the tile functions against their definitions in double precision.
#include "backend/cpu/tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/dtype.h"
#include "tiles_cases.h"

namespace monolayer::cpu::test {
namespace {

constexpr double kEpsilon = 0x1p-24;  // half an ulp of 1 in float32
constexpr double kBf16 = 0x1p-8;      // and in BF16

class TilesTest : public ::testing::TestWithParam<const Tiles*> {
 protected:
  const Tiles& tiles() const { return *GetParam(); }
  std::vector<float> permuted(Format format, const float* x, std::int64_t cols) const {
    std::vector<float> xp(static_cast<std::size_t>(padded_columns(format, cols)));
    tiles().permute(format, x, cols, xp.data());
    return xp;
  }
};

TEST_P(TilesTest, PermuteInvertsToTheActivationAndPadsWithZeros) {
  Random random(1);
  for (const Format format : kFormats) {
    for (const std::int64_t cols : {1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 300}) {
      const std::vector<float> x = floats(random, cols, Content::kTame);
      const std::vector<float> xp = permuted(format, x.data(), cols);
      const std::int64_t per_word = values_per_word(format);
      for (std::int64_t at = 0; at < static_cast<std::int64_t>(xp.size()); ++at) {
        const std::int64_t lane = at % 16;
        const std::int64_t e = at / 16 % per_word;
        const std::int64_t chunk = at / (16 * per_word);
        const std::int64_t column = (chunk * 16 + lane) * per_word + e;
        const float expected =
            column < cols ? x[static_cast<std::size_t>(column)] * activation_factor(format) : 0.0F;
        ASSERT_EQ(xp[static_cast<std::size_t>(at)], expected) << format_name(format) << " " << at;
      }
    }
  }
}

// The error of a dot product of K terms in 16 lanes is at most (K / 16 + tree + scale) roundings
// of the sum of magnitudes.
TEST_P(TilesTest, MatmulIsTheDotProduct) {
  Random random(2);
  for (const Format format : kFormats) {
    for (int round = 0; round < 60; ++round) {
      const std::int64_t rows = pick(random, 1, 9);
      const std::int64_t cols = pick(random, 1, 700);
      const std::int64_t batch = pick(random, 1, 20);
      const MatrixCase w(random, format, rows, cols, Content::kTame, pick(random, 0, 1) == 0);
      std::int64_t col_begin = pick(random, 0, cols - 1);
      if (is_mx(format)) col_begin = col_begin / 32 * 32;
      const std::int64_t col_end = pick(random, col_begin + 1, cols);
      const std::int64_t row_begin = pick(random, 0, rows - 1);
      const std::int64_t row_end = pick(random, row_begin + 1, rows);
      const std::int64_t n = col_end - col_begin;
      const std::int64_t stride = padded_columns(format, n) + pick(random, 0, 5);
      const std::vector<float> x = floats(random, batch * n, Content::kTame);
      std::vector<float> xp(static_cast<std::size_t>(batch * stride), NAN);
      for (std::int64_t r = 0; r < batch; ++r) {
        tiles().permute(format, x.data() + r * n, n, xp.data() + r * stride);
      }
      const std::int64_t y_stride = row_end - row_begin + pick(random, 0, 3);
      std::vector<float> y(static_cast<std::size_t>(batch * y_stride), -7.0F);
      tiles().matmul(w.view, row_begin, row_end, col_begin, col_end, xp.data(), stride, batch,
                     y.data(), y_stride);
      for (std::int64_t r = 0; r < batch; ++r) {
        for (std::int64_t i = 0; i < y_stride; ++i) {
          const double got = y[static_cast<std::size_t>(r * y_stride + i)];
          if (i >= row_end - row_begin) {
            ASSERT_EQ(got, -7.0) << "written past the row range";
            continue;
          }
          double sum = 0;
          double magnitude = 0;
          for (std::int64_t k = 0; k < n; ++k) {
            const double term = w.value(row_begin + i, col_begin + k) *
                                static_cast<double>(x[static_cast<std::size_t>(r * n + k)]);
            sum += term;
            magnitude += std::fabs(term);
          }
          const double roundings = static_cast<double>(n) / 16 + 10;
          ASSERT_LE(std::fabs(got - sum), roundings * kEpsilon * magnitude)
              << format_name(format) << " row " << i << " batch " << r << " n " << n;
        }
      }
    }
  }
}

// One column at a time: y is the decoded value exactly, for every code and every group scale.
TEST_P(TilesTest, EveryCodeDecodesExactly) {
  for (const Format format : {Format::kE4M3, Format::kMXFP8, Format::kMXFP4}) {
    std::vector<std::uint8_t> codes(64);
    std::vector<std::uint8_t> scales(2);
    for (int code = 0; code < 256; ++code) {
      for (int scale = 0; scale < 255; scale += format == Format::kE4M3 ? 255 : 1) {
        for (const std::int64_t column : {0, 1, 37}) {
          const bool nibble = format == Format::kMXFP4;
          if (nibble && (code > 15)) continue;
          std::fill(codes.begin(), codes.end(), std::uint8_t{0});
          std::fill(scales.begin(), scales.end(), std::uint8_t{9});
          scales[static_cast<std::size_t>(column / 32)] = static_cast<std::uint8_t>(scale);
          if (nibble) {
            codes[static_cast<std::size_t>(column / 2)] =
                static_cast<std::uint8_t>(column % 2 == 0 ? code : code << 4);
          } else {
            codes[static_cast<std::size_t>(column)] = static_cast<std::uint8_t>(code);
          }
          const Matrix w{
              format, 1, 64, codes.data(), 64, format == Format::kE4M3 ? nullptr : scales.data(),
              2};
          std::vector<float> x(64, 0.0F);
          x[static_cast<std::size_t>(column)] = 1.0F;
          const std::vector<float> xp = permuted(format, x.data(), 64);
          float y = -7;
          tiles().matmul(w, 0, 1, 0, 64, xp.data(), 0, 1, &y, 1);
          const auto bits = static_cast<unsigned>(code);
          double expected = nibble ? e2m1_by_definition(bits) : e4m3_by_definition(bits);
          if (format != Format::kE4M3) expected *= std::ldexp(1.0, scale - 127);
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(y)) << format_name(format) << " code " << code;
          } else {
            // Only overflow and the subnormal range are rounded, once.
            ASSERT_EQ(y, static_cast<float>(expected))
                << format_name(format) << " code " << code << " scale " << scale;
          }
        }
      }
    }
  }
}

TEST_P(TilesTest, WeightedSumIsTheSumOverRows) {
  Random random(3);
  for (const Format format : {Format::kF32, Format::kBF16, Format::kE4M3}) {
    for (int round = 0; round < 60; ++round) {
      const std::int64_t n = pick(random, 0, 140);
      const std::int64_t dims = pick(random, 1, 200);
      const MatrixCase v(random, format, n, dims, Content::kTame, false);
      const std::vector<float> p = floats(random, n, Content::kTame);
      std::vector<float> out(static_cast<std::size_t>(dims) + 1, -7.0F);
      tiles().weighted_sum(v.view, p.data(), out.data());
      ASSERT_EQ(out.back(), -7.0F);
      for (std::int64_t d = 0; d < dims; ++d) {
        double sum = 0;
        double magnitude = 0;
        for (std::int64_t j = 0; j < n; ++j) {
          const double term = v.value(j, d) * static_cast<double>(p[static_cast<std::size_t>(j)]);
          sum += term;
          magnitude += std::fabs(term);
        }
        ASSERT_LE(std::fabs(out[static_cast<std::size_t>(d)] - sum),
                  static_cast<double>(n + 1) * kEpsilon * magnitude)
            << format_name(format) << " d " << d;
      }
    }
  }
}

TEST_P(TilesTest, WeightedSumCarriesNaNCodesOfSkippedProbabilities) {
  for (const std::int64_t d : {0, 5, 63, 100}) {
    std::vector<std::uint8_t> codes(3 * 101, 0x38);
    codes[static_cast<std::size_t>(101 + d)] = 0xff;
    const float p[3] = {0.5F, 0.0F, 0.5F};
    std::vector<float> out(101);
    tiles().weighted_sum({Format::kE4M3, 3, 101, codes.data(), 101, nullptr, 0}, p, out.data());
    for (std::int64_t i = 0; i < 101; ++i) {
      const float value = out[static_cast<std::size_t>(i)];
      ASSERT_TRUE(i == d ? std::isnan(value) : value == 1.0F) << i;
    }
  }
}

TEST_P(TilesTest, SumSquares) {
  Random random(4);
  for (std::int64_t n = 0; n < 200; ++n) {
    const std::vector<float> x = floats(random, n, Content::kTame);
    double sum = 0;
    for (const float value : x) sum += static_cast<double>(value) * value;
    EXPECT_LE(std::fabs(tiles().sum_squares(x.data(), n) - sum),
              (static_cast<double>(n) / 16 + 6) * kEpsilon * sum);
  }
}

TEST_P(TilesTest, ScaleByNormRoundsOnceToBf16) {
  Random random(5);
  for (const std::int64_t n : {1, 7, 16, 33, 200}) {
    const std::vector<float> x = floats(random, n, Content::kTame);
    std::vector<std::uint16_t> weight(static_cast<std::size_t>(n));
    for (auto& bits : weight) bits = f32_to_bf16(tame_float(random) * 0.1F);
    std::vector<float> out(static_cast<std::size_t>(n));
    tiles().scale_by_norm(x.data(), 0.37F, weight.data(), n, out.data());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double expected = static_cast<double>(x[i]) * static_cast<double>(0.37F) *
                              (1.0 + static_cast<double>(bf16_to_f32(weight[i])));
      EXPECT_LE(std::fabs(out[i] - expected), std::fabs(expected) * (kBf16 + 4 * kEpsilon));
      EXPECT_EQ(out[i], round_bf16(out[i]));
    }
  }
}

TEST_P(TilesTest, SwigluFollowsItsFormula) {
  const float alpha = 1.702F;
  const float limit = 7.0F;
  const float beta = 1.0F;
  std::vector<float> gate;
  std::vector<float> up;
  for (int i = 0; i < 244; ++i) {
    const float g = -60 + 0.37F * static_cast<float>(i);
    for (const float u : {-9.0F, -6.5F, -1.0F, 0.0F, 0.3F, 6.99F, 9.0F}) {
      gate.push_back(g);
      up.push_back(u);
    }
  }
  std::vector<float> out(gate.size());
  tiles().swiglu(gate.data(), up.data(), static_cast<std::int64_t>(out.size()), alpha, limit, beta,
                 out.data());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double g = std::min(static_cast<double>(gate[i]), 7.0);
    const double u = std::clamp(static_cast<double>(up[i]), -7.0, 7.0);
    if (static_cast<double>(alpha) * g < -88) {
      // 1 + exp(88.7) overflows float32: the sigmoid, below 2^-127 by then, becomes zero.
      EXPECT_LT(std::fabs(out[i]), 1e-35) << gate[i];
      continue;
    }
    const double expected = g / (1.0 + std::exp(-static_cast<double>(alpha) * g)) * (u + 1.0);
    // The argument of exp carries one rounding, worth up to |alpha g| epsilon.
    const double tolerance = kBf16 + (8 + std::fabs(2 * g)) * kEpsilon;
    EXPECT_LE(std::fabs(out[i] - expected), std::fabs(expected) * tolerance)
        << gate[i] << " " << up[i];
  }
}

TEST_P(TilesTest, SoftmaxChunk) {
  Random random(6);
  for (std::int64_t n = 1; n < 140; ++n) {
    std::vector<float> s = floats(random, n, Content::kTame);
    for (float& value : s) value *= 10;
    if (n > 3) s[2] = -std::numeric_limits<float>::infinity();
    if (n > 4) s[3] = -500;
    std::vector<float> p(s.size() + 1, -7.0F);
    float max = 0;
    float sum = 0;
    tiles().softmax_chunk(s.data(), n, p.data(), &max, &sum);
    const float largest = *std::max_element(s.begin(), s.end());
    EXPECT_EQ(max, largest);
    EXPECT_EQ(p.back(), -7.0F);
    double expected_sum = 0;
    for (std::size_t i = 0; i < s.size(); ++i) {
      const double e = std::exp(static_cast<double>(s[i] - largest));
      expected_sum += e;
      EXPECT_LE(std::fabs(p[i] - e), e * (kBf16 + 4 * kEpsilon) + 0x1p-134) << s[i] - largest;
      EXPECT_EQ(p[i], round_bf16(p[i]));
    }
    EXPECT_LE(std::fabs(sum - expected_sum), (static_cast<double>(n) / 16 + 8) * kEpsilon * sum);
  }
}

TEST_P(TilesTest, SoftmaxChunkNeverHidesANaN) {
  for (std::size_t at = 0; at < 40; ++at) {
    std::vector<float> s(40, 1.0F);
    s[at] = NAN;
    std::vector<float> p(40);
    float max = 0;
    float sum = 0;
    tiles().softmax_chunk(s.data(), 40, p.data(), &max, &sum);
    EXPECT_EQ(max, 1.0F);
    EXPECT_TRUE(std::isnan(sum));
    for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(p[i]), i == at);
  }
  for (const float edge : {INFINITY, -INFINITY}) {
    const std::vector<float> s(20, edge);
    std::vector<float> p(20);
    float max = 0;
    float sum = 0;
    tiles().softmax_chunk(s.data(), 20, p.data(), &max, &sum);
    EXPECT_EQ(max, edge);
    EXPECT_TRUE(std::isnan(sum));
  }
}

TEST_P(TilesTest, MaximumOfAnyPositionAndNaN) {
  Random random(7);
  for (std::int64_t n = 1; n < 70; ++n) {
    std::vector<float> x = floats(random, n, Content::kTame);
    for (float& value : x) value -= 100;
    const auto at = static_cast<std::size_t>(pick(random, 0, n - 1));
    x[at] = 3;
    EXPECT_EQ(tiles().maximum(x.data(), n), 3.0F);
    std::fill(x.begin(), x.end(), NAN);
    EXPECT_EQ(tiles().maximum(x.data(), n), -1e30F);
    x[at] = -2e30F;
    EXPECT_EQ(tiles().maximum(x.data(), n), n == 1 ? -2e30F : -1e30F);
    std::fill(x.begin(), x.end(), -0.0F);
    EXPECT_FALSE(std::signbit(tiles().maximum(x.data(), n)));
  }
}

TEST_P(TilesTest, ExponentialWithinTwoUlp) {
  double worst = 0;
  for (int i = 0; i < 113450; ++i) {
    const float x = -104.5F + 0.00171F * static_cast<float>(i);
    const float got = tiles().exponential(x);
    const double expected = std::exp(static_cast<double>(x));
    if (expected > static_cast<double>(std::numeric_limits<float>::max())) {
      EXPECT_TRUE(std::isinf(got)) << x;
      continue;
    }
    const double ulp = std::max(std::ldexp(1.0, std::ilogb(expected) - 23), 0x1p-149);
    worst = std::max(worst, std::fabs(got - expected) / ulp);
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_EQ(tiles().exponential(0.0F), 1.0F);
  EXPECT_EQ(tiles().exponential(-0.0F), 1.0F);
  for (const float x : {-103.98F, -104.0F, -1e6F, -std::numeric_limits<float>::max(), -INFINITY}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(tiles().exponential(x)), 0U) << x;
  }
  EXPECT_TRUE(std::isinf(tiles().exponential(INFINITY)));
  EXPECT_TRUE(std::isnan(tiles().exponential(NAN)));
}

INSTANTIATE_TEST_SUITE_P(Variants, TilesTest,
                         ::testing::ValuesIn(available_tiles().begin(), available_tiles().end()),
                         [](const auto& variant) { return std::string(variant.param->name); });

TEST(Tiles, AreFoundByName) {
  EXPECT_EQ(find_tiles(""), available_tiles().front());
  EXPECT_EQ(available_tiles().back()->name, "scalar");
  for (const Tiles* tiles : available_tiles()) EXPECT_EQ(find_tiles(tiles->name), tiles);
  EXPECT_EQ(find_tiles("mmx"), nullptr);
}

}  // namespace
}  // namespace monolayer::cpu::test

#include "checkpoint/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "checkpoint/expect_refused.h"
#include "checkpoint/quantized_tensor.h"

namespace monolayer {
namespace {

// Magnitudes of all codes, by definition.
std::vector<double> magnitudes(bool fp4) {
  std::vector<double> values;
  if (fp4) return {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int code = 0; code < 127; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    values.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                   : std::ldexp(8 + mantissa, exponent - 10));
  }
  return values;
}

// The nearest code by exhaustive search, the even one on a tie, the last one beyond the end.
int nearest(const std::vector<double>& codes, double value) {
  int best = 0;
  for (int code = 1; code < static_cast<int>(codes.size()); ++code) {
    const double here = std::fabs(std::fabs(value) - codes[static_cast<std::size_t>(code)]);
    const double old = std::fabs(std::fabs(value) - codes[static_cast<std::size_t>(best)]);
    if (here < old || (here == old && code % 2 == 0)) best = code;
  }
  return best;
}

// The shared exponent from frexp, not from bit patterns.
int exponent_by_definition(double largest, int element_max, MxRule rule) {
  if (largest == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(largest, &exponent);  // [0.5, 1)
  exponent -= 1;
  if (rule == MxRule::kEven && fraction * 2 >= 1.75) ++exponent;
  return std::max(-127, std::min(127 - element_max, exponent - element_max));
}

std::vector<float> random_rows(std::size_t count, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    // Scales that differ in every group, by up to 2^60.
    const int exponent = static_cast<int>((i / 32 * 7) % 60) - 30;
    const auto mantissa = static_cast<float>(static_cast<std::int32_t>(engine())) * 0x1p-31F;
    values[i] = std::ldexp(mantissa, exponent);
  }
  return values;
}

void check_mx(const std::vector<float>& values, std::int64_t rows, std::int64_t cols, MxRule rule,
              bool fp4) {
  const std::size_t groups = values.size() / 32;
  std::vector<std::uint8_t> weight(values.size() / (fp4 ? 2 : 1)), scale(groups);
  const auto quantize = fp4 ? quantize_mxfp4 : quantize_mxfp8;
  ASSERT_TRUE(quantize(values.data(), rows, cols, rule, "w", weight.data(), scale.data()).ok());
  const std::vector<double> codes = magnitudes(fp4);
  std::vector<float> expected(values.size());
  for (std::size_t group = 0; group < groups; ++group) {
    double largest = 0;
    for (std::size_t i = 0; i < 32; ++i)
      largest = std::max(largest, std::fabs(static_cast<double>(values[group * 32 + i])));
    const int exponent = exponent_by_definition(largest, fp4 ? 2 : 8, rule);
    ASSERT_EQ(scale[group], exponent + 127) << group;
    for (std::size_t i = 0; i < 32; ++i) {
      const std::size_t at = group * 32 + i;
      const int code = nearest(codes, std::ldexp(static_cast<double>(values[at]), -exponent));
      const int sign = std::signbit(values[at]) ? 1 : 0;
      const int stored =
          fp4 ? (i % 2 == 0 ? weight[at / 2] & 15 : weight[at / 2] >> 4) : weight[at];
      ASSERT_EQ(stored, code | sign << (fp4 ? 3 : 7)) << group << " " << i << " " << values[at];
      expected[at] = static_cast<float>(
          std::ldexp(codes[static_cast<std::size_t>(code)], exponent) * (sign != 0 ? -1 : 1));
    }
  }
  // The decoder reads back what the definition says was stored.
  const TensorView bytes{fp4 ? DType::kU8 : DType::kE4M3,
                         {rows, fp4 ? cols / 2 : cols},
                         reinterpret_cast<const std::byte*>(weight.data()),
                         weight.size(),
                         "w",
                         "f"};
  const TensorView scales{DType::kU8,
                          {rows, cols / 32},
                          reinterpret_cast<const std::byte*>(scale.data()),
                          scale.size(),
                          "s",
                          "f"};
  const QuantizedMatrix matrix{fp4 ? WeightFormat::kMXFP4 : WeightFormat::kMXFP8, rows, cols, bytes,
                               scales};
  std::vector<float> decoded(values.size());
  dequantize(matrix, 0, rows, decoded.data());
  EXPECT_EQ(std::memcmp(decoded.data(), expected.data(), decoded.size() * 4), 0);
  // Quantising the decoded values again under the OCP rule changes nothing unless a group's
  // largest element rounded down into a smaller binade; then the same values stay representable.
  std::vector<std::uint8_t> weight2(weight.size()), scale2(scale.size());
  ASSERT_TRUE(quantize(decoded.data(), rows, cols, rule, "w", weight2.data(), scale2.data()).ok());
  const QuantizedMatrix again{
      matrix.format,
      rows,
      cols,
      {bytes.dtype, bytes.shape, reinterpret_cast<const std::byte*>(weight2.data()), weight2.size(),
       "w", "f"},
      {scales.dtype, scales.shape, reinterpret_cast<const std::byte*>(scale2.data()), scale2.size(),
       "s", "f"}};
  std::vector<float> decoded2(values.size());
  dequantize(again, 0, rows, decoded2.data());
  if (rule == MxRule::kOcp) {
    for (std::size_t i = 0; i < decoded.size(); ++i) ASSERT_EQ(decoded[i], decoded2[i]) << i;
  }
}

TEST(Quantize, MxEqualsExhaustiveSearchUnderBothRules) {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    const std::vector<float> values = random_rows(8 * 512, seed);
    for (const MxRule rule : {MxRule::kOcp, MxRule::kEven}) {
      check_mx(values, 8, 512, rule, true);
      check_mx(values, 8, 512, rule, false);
    }
  }
}

TEST(Quantize, MxExtremes) {
  std::vector<float> values(3 * 32, 0.0F);
  values[0] = std::numeric_limits<float>::max();
  values[1] = -std::numeric_limits<float>::max();
  values[32] = std::numeric_limits<float>::denorm_min();
  values[33] = -0.0F;
  values[64] = std::numeric_limits<float>::min();
  for (const MxRule rule : {MxRule::kOcp, MxRule::kEven}) {
    check_mx(values, 3, 32, rule, true);
    check_mx(values, 3, 32, rule, false);
  }
}

TEST(Quantize, ExactBytesOfOneGroup) {
  // Largest 7 = 1.75 * 2^2: OCP shares 2^0 and saturates 7 to 6; "even" takes 2^1 and stores 3.5
  // as 4.
  std::vector<float> values(32, 0.0F);
  values[0] = 7.0F;
  values[1] = -1.0F;
  values[2] = 0.25F;  // a tie between 0 and 0.5: even
  values[3] = 2.5F;   // a tie between 2 and 3: 2 under OCP
  std::uint8_t weight[16], scale = 0;
  ASSERT_TRUE(quantize_mxfp4(values.data(), 1, 32, MxRule::kOcp, "w", weight, &scale).ok());
  EXPECT_EQ(scale, 127);
  EXPECT_EQ(weight[0], 0xa7);
  EXPECT_EQ(weight[1], 0x40);
  ASSERT_TRUE(quantize_mxfp4(values.data(), 1, 32, MxRule::kEven, "w", weight, &scale).ok());
  EXPECT_EQ(scale, 128);
  EXPECT_EQ(weight[0], 0x96);
  EXPECT_EQ(weight[1], 0x20);
  values.assign(32, 0.0F);
  ASSERT_TRUE(quantize_mxfp4(values.data(), 1, 32, MxRule::kOcp, "w", weight, &scale).ok());
  EXPECT_EQ(scale, 127);
}

TEST(Quantize, Fp8PerChannelEqualsTheDefinition) {
  const std::int64_t rows = 16, cols = 100;
  std::vector<float> values = random_rows(rows * cols, 5);
  for (std::int64_t i = 0; i < cols; ++i) values[static_cast<std::size_t>(3 * cols + i)] = 0;
  std::vector<std::uint8_t> weight(values.size());
  std::vector<float> scale(rows);
  ASSERT_TRUE(
      quantize_fp8_per_channel(values.data(), rows, cols, "w", weight.data(), scale.data()).ok());
  const std::vector<double> codes = magnitudes(false);
  for (std::int64_t row = 0; row < rows; ++row) {
    float largest = 0;
    for (std::int64_t i = 0; i < cols; ++i)
      largest = std::max(largest, std::fabs(values[static_cast<std::size_t>(row * cols + i)]));
    const float factor = scale[static_cast<std::size_t>(row)];
    EXPECT_EQ(factor, largest == 0 ? 1.0F : largest / 448.0F) << row;
    bool reaches_the_end = largest == 0;
    for (std::int64_t i = 0; i < cols; ++i) {
      const auto at = static_cast<std::size_t>(row * cols + i);
      const float quotient = values[at] / factor;
      ASSERT_EQ(weight[at] & 0x7f, nearest(codes, quotient)) << row << " " << i;
      ASSERT_EQ(weight[at] >> 7, std::signbit(values[at]) ? 1 : 0);
      reaches_the_end = reaches_the_end || (weight[at] & 0x7f) == 0x7e;
    }
    EXPECT_TRUE(reaches_the_end) << row;
  }
}

TEST(Quantize, TinyRowsKeepNormalScales) {
  const std::vector<float> values = {std::numeric_limits<float>::denorm_min(), 0.0F};
  std::uint8_t weight[2];
  float scale = 0;
  ASSERT_TRUE(quantize_fp8_per_channel(values.data(), 1, 2, "w", weight, &scale).ok());
  EXPECT_EQ(scale, std::numeric_limits<float>::min());
}

TEST(Faults_Quantize, NanInfinityAndRaggedRows) {
  std::vector<float> values(64, 1.0F);
  std::uint8_t weight[64], scale[2];
  float row_scale[1];
  values[33] = NAN;
  expect_refused(quantize_mxfp4(values.data(), 2, 32, MxRule::kOcp, "w", weight, scale),
                 Code::kInvalidArgument, {"'w'", "[1, 1]"});
  values[33] = INFINITY;
  expect_refused(quantize_mxfp8(values.data(), 2, 32, MxRule::kOcp, "w", weight, scale),
                 Code::kInvalidArgument, {"'w'", "[1, 1]"});
  expect_refused(quantize_fp8_per_channel(values.data(), 1, 64, "w", weight, row_scale),
                 Code::kInvalidArgument, {"'w'", "[0, 33]"});
  expect_refused(quantize_mxfp4(values.data(), 1, 33, MxRule::kOcp, "w", weight, scale),
                 Code::kInvalidArgument, {"'w'", "33", "32"});
}

}  // namespace
}  // namespace monolayer

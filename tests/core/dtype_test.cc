#include "core/dtype.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/status.h"

namespace monolayer {
namespace {

// Independent definition of E4M3: all 256 values listed by formula in double.
double e4m3_by_definition(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? mantissa / 8.0 * std::pow(2.0, -6)
                                         : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(Dtype, E4M3DecodesEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const double expected = e4m3_by_definition(code);
    const float got = e4m3_to_f32(static_cast<std::uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << code;
    } else {
      EXPECT_EQ(got, expected) << code;
      EXPECT_EQ(std::signbit(got), (code & 0x80) != 0) << code;
    }
  }
}

// The nearest code by exhaustive search, even code on ties.
int nearest_e4m3(double value) {
  int best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 0x7f; ++code) {
    const double distance = std::fabs(std::fabs(value) - e4m3_by_definition(code));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}

TEST(Dtype, E4M3RoundsToNearestEvenAndSaturates) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto low = static_cast<float>(e4m3_by_definition(code));
    const auto high = static_cast<float>(e4m3_by_definition(code + 1));
    const float middle = (low + high) / 2;
    for (const float value : {low, std::nextafter(low, 1e9F), std::nextafter(middle, 0.0F), middle,
                              std::nextafter(middle, 1e9F)}) {
      EXPECT_EQ(f32_to_e4m3(value), nearest_e4m3(value)) << value;
      EXPECT_EQ(f32_to_e4m3(-value), nearest_e4m3(-value)) << value;
    }
  }
  EXPECT_EQ(f32_to_e4m3(1e30F), 0x7e);
  EXPECT_EQ(f32_to_e4m3(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(f32_to_e4m3(464.0F), 0x7e);
  EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Dtype, E2M1RoundTripsAndRoundsToEven) {
  for (int code = 0; code < 16; ++code) {
    const float value = e2m1_to_f32(static_cast<std::uint8_t>(code));
    EXPECT_EQ(f32_to_e2m1(value), code);
  }
  // Midpoints: 0.25 -> 0, 0.75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4, 5 -> 4.
  EXPECT_EQ(f32_to_e2m1(0.25F), 0);
  EXPECT_EQ(f32_to_e2m1(0.75F), 2);
  EXPECT_EQ(f32_to_e2m1(1.25F), 2);
  EXPECT_EQ(f32_to_e2m1(1.75F), 4);
  EXPECT_EQ(f32_to_e2m1(2.5F), 4);
  EXPECT_EQ(f32_to_e2m1(3.5F), 6);
  EXPECT_EQ(f32_to_e2m1(5.0F), 6);
  EXPECT_EQ(f32_to_e2m1(-1e9F), 15);
}

TEST(Dtype, Bf16RoundsToNearestEven) {
  for (std::uint32_t high = 0; high < 0x7f80; ++high) {
    const auto exact = std::bit_cast<float>(high << 16);
    EXPECT_EQ(f32_to_bf16(exact), high);
    const auto tie = std::bit_cast<float>((high << 16) | 0x8000U);
    EXPECT_EQ(f32_to_bf16(tie), high + (high & 1U));
  }
  EXPECT_TRUE(std::isnan(round_bf16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isinf(round_bf16(std::numeric_limits<float>::max())));
}

TEST(Dtype, E8M0IsAPowerOfTwoAndFFIsNaN) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(e8m0_to_f32(static_cast<std::uint8_t>(code)), std::ldexp(1.0F, code - 127));
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(0xff)));
}

TEST(Dtype, F16DecodesSubnormalsAndInfinity) {
  EXPECT_EQ(f16_to_f32(0x3c00), 1.0F);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24F);
  EXPECT_EQ(f16_to_f32(0xfbff), -65504.0F);
  EXPECT_TRUE(std::isinf(f16_to_f32(0x7c00)));
}

TEST(Status, MessageIsOneLine) {
  const Status status(Code::kInvalidFile, "a\nb\x1b[31m", "bad");
  EXPECT_EQ(status.to_string(), "a?b?[31m: bad");
  EXPECT_FALSE(status.ok());
}

}  // namespace
}  // namespace monolayer

#include "checkpoint/quantized_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "checkpoint/expect_refused.h"
#include "checkpoint/quantize.h"
#include "checkpoint/temp_files.h"

namespace monolayer {
namespace {

using nlohmann::json;
using testing_files::bytes_of;
using testing_files::Piece;
using testing_files::safetensors;
using testing_files::TempDir;
using testing_files::write_file;

std::string repeat(std::size_t count, int byte) {
  return {std::string(count, static_cast<char>(byte))};
}

// A checkpoint of the given tensors and quantization_config.
struct Model {
  Model(const std::vector<Piece>& pieces, const json& quantization) {
    json config = json::object();
    if (!quantization.is_null()) config["quantization_config"] = quantization;
    write_file(dir.at("config.json"), config.dump());
    write_file(dir.at("model.safetensors"), safetensors(pieces));
    Result<Checkpoint> opened = Checkpoint::open(dir.path());
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    checkpoint = std::make_unique<Checkpoint>(std::move(opened).value());
    Result<QuantizationConfig> parsed = QuantizationConfig::of(*checkpoint);
    EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
    quant = *parsed;
  }
  Result<QuantizedMatrix> find(const std::string& module = "x",
                               ValueCheck check = ValueCheck::kAll) const {
    return find_matrix(*checkpoint, quant, module, check);
  }
  Status status() const { return find().status(); }
  TempDir dir;
  std::unique_ptr<Checkpoint> checkpoint;
  QuantizationConfig quant;
};

const json kMxfp4 = {
    {"quant_method", "quark"},
    {"global_quant_config", {{"weight", {{"dtype", "fp4"}, {"qscheme", "per_group"}}}}}};
const json kMxfp8 = {{"quant_method", "mxfp8"}};
const json kFp8 = {{"quant_method", "ptpc_fp8"}};

// Definitions in double, from the formats' descriptions.
double e2m1(int nibble) {
  const int exponent = nibble >> 1 & 3, mantissa = nibble & 1;
  const double magnitude =
      exponent == 0 ? mantissa * 0.5 : std::ldexp(1 + mantissa * 0.5, exponent - 1);
  return (nibble & 8) != 0 ? -magnitude : magnitude;
}
double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 128) != 0 ? -magnitude : magnitude;
}

TEST(QuantizedTensor, Byte2AIsMinusOneThenPlusOne) {
  const Model model({{"x.weight", "U8", "[1,16]", repeat(16, 0x2a)},
                     {"x.weight_scale", "U8", "[1,1]", repeat(1, 127)},
                     {"y.weight", "U8", "[1,16]", repeat(16, 0x2a)},
                     {"y.weight_scale", "U8", "[1,1]", repeat(1, 118)}},
                    kMxfp4);
  for (const auto& [module, unit] : {std::pair("x", 1.0F), std::pair("y", 0x1p-9F)}) {
    Result<QuantizedMatrix> matrix = model.find(module);
    ASSERT_TRUE(matrix.ok()) << matrix.status().to_string();
    EXPECT_EQ(matrix->format, WeightFormat::kMXFP4);
    EXPECT_EQ(matrix->rows, 1);
    EXPECT_EQ(matrix->cols, 32);
    std::vector<float> values(32);
    dequantize(*matrix, 0, 1, values.data());
    for (int i = 0; i < 32; ++i) EXPECT_EQ(values[i], i % 2 == 0 ? -unit : unit) << i;
  }
}

// Fault 11: with equal scales any permutation of them decodes alike, so every group's is its own.
TEST(Faults11_ScaleLayout, EveryGroupHasItsOwnScaleAndEveryCodeIsDecoded) {
  constexpr int kRows = 6, kGroups = 4, kCols = kGroups * 32;
  std::string weight4, weight8, scale;
  for (int row = 0; row < kRows; ++row) {
    for (int group = 0; group < kGroups; ++group)
      scale += static_cast<char>(110 + row * kGroups + group);
    for (int i = 0; i < kCols / 2; ++i) weight4 += static_cast<char>(row * 64 + i * 7);
    for (int i = 0; i < kCols; ++i) {
      int code = (row * kCols + i) & 255;
      if ((code & 0x7f) == 0x7f) code ^= 1;
      weight8 += static_cast<char>(code);
    }
  }
  const Model four(
      {{"x.weight", "U8", "[6,64]", weight4}, {"x.weight_scale", "U8", "[6,4]", scale}}, kMxfp4);
  const Model eight(
      {{"x.weight", "F8_E4M3", "[6,128]", weight8}, {"x.weight_scale_inv", "U8", "[6,4]", scale}},
      kMxfp8);
  Result<QuantizedMatrix> matrix4 = four.find(), matrix8 = eight.find();
  ASSERT_TRUE(matrix4.ok()) << matrix4.status().to_string();
  ASSERT_TRUE(matrix8.ok()) << matrix8.status().to_string();
  std::vector<float> got4(kRows * kCols), got8(kRows * kCols);
  dequantize(*matrix4, 0, kRows, got4.data());
  dequantize(*matrix8, 0, kRows, got8.data());
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kCols; ++col) {
      const double unit = std::ldexp(1.0, 110 + row * kGroups + col / 32 - 127);
      const auto byte = static_cast<std::uint8_t>(weight4[row * kCols / 2 + col / 2]);
      const int nibble = col % 2 == 0 ? byte & 15 : byte >> 4;
      const auto code = static_cast<std::uint8_t>(weight8[row * kCols + col]);
      ASSERT_EQ(got4[row * kCols + col], unit * e2m1(nibble)) << row << "," << col;
      ASSERT_EQ(got8[row * kCols + col], unit * e4m3(code)) << row << "," << col;
    }
  }
  // A range of rows is the same rows; so is a slice.
  std::vector<float> part(2 * kCols);
  dequantize(*matrix4, 3, 5, part.data());
  EXPECT_EQ(0, std::memcmp(part.data(), &got4[3 * kCols], part.size() * 4));
  Result<QuantizedMatrix> slice = slice_rows(*matrix8, 3, 5);
  ASSERT_TRUE(slice.ok());
  dequantize(*slice, 0, 2, part.data());
  EXPECT_EQ(0, std::memcmp(part.data(), &got8[3 * kCols], part.size() * 4));
}

TEST(QuantizedTensor, ExtremeScalesAreExact) {
  // 2^-127 is a subnormal float, products with it too.
  const Model model({{"x.weight", "F8_E4M3", "[1,32]", repeat(32, 0x0f)},
                     {"x.weight_scale_inv", "U8", "[1,1]", repeat(1, 0)}},
                    kMxfp8);
  Result<QuantizedMatrix> matrix = model.find();
  ASSERT_TRUE(matrix.ok());
  std::vector<float> values(32);
  dequantize(*matrix, 0, 1, values.data());
  EXPECT_EQ(values[0], std::ldexp(15.0, -9 - 127));
}

TEST(QuantizedTensor, Fp8PerChannelHasOneScaleARow) {
  const std::vector<float> scales = {0.5F, 3.0F};
  for (const std::string shape : {"[2]", "[2,1]"}) {
    const Model model({{"x.weight_scale", "F32", shape, bytes_of(scales)},
                       {"x.weight", "F8_E4M3", "[2,3]", std::string("\x38\x38\xb8\x38\x40\x38")}},
                      kFp8);
    Result<QuantizedMatrix> matrix = model.find();
    ASSERT_TRUE(matrix.ok()) << matrix.status().to_string();
    EXPECT_EQ(matrix->format, WeightFormat::kFP8PerChannel);
    std::vector<float> values(6);
    dequantize(*matrix, 0, 2, values.data());
    EXPECT_EQ(values, (std::vector<float>{0.5F, 0.5F, -0.5F, 3.0F, 6.0F, 3.0F}));
  }
}

TEST(QuantizedTensor, PlainFormatsAndStackedAxes) {
  const std::vector<std::uint16_t> values = {0x3f80, 0x4000, 0x4040, 0xbf80, 0, 0x4080};
  const Model model({{"experts.up", "BF16", "[3,1,2]", bytes_of(values)}}, nullptr);
  Result<QuantizedMatrix> matrix = model.find("experts.up");
  ASSERT_TRUE(matrix.ok()) << matrix.status().to_string();
  EXPECT_EQ(matrix->rows, 3);
  EXPECT_EQ(matrix->cols, 2);
  std::vector<float> got(6);
  dequantize(*matrix, 0, 3, got.data());
  EXPECT_EQ(got, (std::vector<float>{1, 2, 3, -1, 0, 4}));
  expect_refused(expect_matrix(*matrix, 3, 3), Code::kInvalidFile,
                 {"experts.up", "[3, 2]", "[3, 3]"});
}

TEST(QuantizedTensor, ScaleNamesInUse) {
  for (const std::string name : {"x.weight_scale", "x.scale", "x.weight_scale_inv"}) {
    const Model model({{"x.weight", "U8", "[1,16]", repeat(16, 0)}, {name, "U8", "[1,1]", "\x7f"}},
                      kMxfp4);
    EXPECT_TRUE(model.status().ok()) << name;
  }
  const Model e8m0(
      {{"x.weight", "U8", "[1,16]", repeat(16, 0)}, {"x.weight_scale", "F8_E8M0", "[1,1]", "\x7f"}},
      kMxfp4);
  EXPECT_TRUE(e8m0.status().ok());
}

TEST(Faults_Scales, Missing) {
  const Model four({{"x.weight", "U8", "[1,16]", repeat(16, 0)}}, kMxfp4);
  expect_refused(four.status(), Code::kInvalidFile,
                 {"model.safetensors", "'x.weight'", "scale", "missing"});
  const Model eight({{"x.weight", "F8_E4M3", "[1,32]", repeat(32, 0)}}, kMxfp8);
  expect_refused(eight.status(), Code::kInvalidFile, {"'x.weight'", "missing"});
  const Model none({{"y.weight", "BF16", "[1,1]", "ab"}}, nullptr);
  expect_refused(none.status(), Code::kNotFound, {"'x.weight'"});
}

TEST(Faults_Scales, WrongShapeOrDtype) {
  for (const auto& [shape, bytes] :
       {std::pair("[1,2]", 2), std::pair("[2,1]", 2), std::pair("[1]", 1)}) {
    const Model model({{"x.weight", "U8", "[1,16]", repeat(16, 0)},
                       {"x.weight_scale", "U8", shape, repeat(bytes, 127)}},
                      kMxfp4);
    expect_refused(model.status(), Code::kInvalidFile, {"'x.weight_scale'", "[1, 1]"});
  }
  const Model dtype({{"x.weight_scale", "F32", "[1,1]", repeat(4, 0)},
                     {"x.weight", "U8", "[1,16]", repeat(16, 0)}},
                    kMxfp4);
  expect_refused(dtype.status(), Code::kInvalidFile, {"'x.weight_scale'", "F32"});
  const Model ragged(
      {{"x.weight", "U8", "[1,17]", repeat(17, 0)}, {"x.weight_scale", "U8", "[1,1]", "\x7f"}},
      kMxfp4);
  expect_refused(ragged.status(), Code::kInvalidFile, {"'x.weight'", "17 bytes", "32"});
  const Model tensorwise({{"x.weight_scale", "F32", "[1]", bytes_of(std::vector<float>{1})},
                          {"x.weight", "F8_E4M3", "[2,2]", repeat(4, 0)}},
                         kFp8);
  expect_refused(tensorwise.status(), Code::kInvalidFile, {"'x.weight_scale'", "[1]", "[2, 1]"});
}

TEST(Faults_Scales, E8m0FFIsRefusedWithItsPlace) {
  std::string scale = repeat(3 * 40, 127);
  scale[2 * 40 + 7] = '\xff';
  const Model four({{"x.weight", "U8", "[3,640]", repeat(3 * 640, 0)},
                    {"x.weight_scale", "U8", "[3,40]", scale}},
                   kMxfp4);
  expect_refused(four.status(), Code::kInvalidFile, {"'x.weight_scale'", "[2, 7]", "0xFF"});
  EXPECT_FALSE(four.find("x", ValueCheck::kScales).ok());
  EXPECT_TRUE(four.find("x", ValueCheck::kNone).ok());
  const Model eight({{"x.weight", "F8_E4M3", "[3,1280]", repeat(3 * 1280, 0)},
                     {"x.weight_scale_inv", "U8", "[3,40]", scale}},
                    kMxfp8);
  expect_refused(eight.status(), Code::kInvalidFile, {"'x.weight_scale_inv'", "[2, 7]", "0xFF"});
}

TEST(Faults_Scales, NotFiniteOrNegativeFloatScales) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), -1.0F, 1e38F}) {
    const Model model({{"x.weight_scale", "F32", "[3]", bytes_of(std::vector<float>{1, 0, bad})},
                       {"x.weight", "F8_E4M3", "[3,2]", repeat(6, 0x38)}},
                      kFp8);
    expect_refused(model.status(), Code::kInvalidFile, {"'x.weight_scale'", "[2]"});
  }
}

TEST(QuantizedTensor, LargestAcceptedRowScaleStaysFinite) {
  const float limit = std::numeric_limits<float>::max() / 448.0F;
  for (const float scale : {limit, std::nextafter(limit, INFINITY)}) {
    const Model model({{"x.weight_scale", "F32", "[1]", bytes_of(std::vector<float>{scale})},
                       {"x.weight", "F8_E4M3", "[1,1]", "\x7e"}},
                      kFp8);
    EXPECT_EQ(model.status().ok(), scale == limit);
    if (scale == limit) {
      EXPECT_TRUE(std::isfinite(448.0F * scale));
    }
  }
}

TEST(Faults_Values, Fp8NanCodes) {
  for (const int code : {0x7f, 0xff}) {
    std::string weight = repeat(2 * 4096 * 2, 0x7e);
    weight[4096 * 2 + 5000] = static_cast<char>(code);
    const Model model({{"x.weight_scale", "F32", "[2]", bytes_of(std::vector<float>{1, 1})},
                       {"x.weight", "F8_E4M3", "[2,8192]", weight}},
                      kFp8);
    expect_refused(model.status(), Code::kInvalidFile, {"'x.weight'", "[1, 5000]", "NaN"});
  }
}

TEST(Faults_Values, NanAndInfinityInPlainWeights) {
  for (const std::uint16_t bad : {0x7f80, 0xff80, 0x7fc0}) {
    const Model model({{"x.weight", "BF16", "[2,2]",
                        bytes_of(std::vector<std::uint16_t>{0x7f7f, 0, 0xff7f, bad})}},
                      nullptr);
    expect_refused(model.status(), Code::kInvalidFile, {"'x.weight'", "[1, 1]"});
  }
  const Model f32({{"x.weight", "F32", "[1,2]", bytes_of(std::vector<float>{3e38F, NAN})}},
                  nullptr);
  expect_refused(f32.status(), Code::kInvalidFile, {"'x.weight'", "[0, 1]"});
  const Model f16(
      {{"x.weight", "F16", "[1,2]", bytes_of(std::vector<std::uint16_t>{0x7bff, 0x7c00})}},
      nullptr);
  expect_refused(f16.status(), Code::kInvalidFile, {"'x.weight'", "[0, 1]"});
}

TEST(Faults_Values, ScalesThatCarryElementsPastFloat32) {
  const auto four = [](int nibbles, int scale) {
    return Model({{"x.weight", "U8", "[1,32]", repeat(16, 0) + repeat(16, nibbles)},
                  {"x.weight_scale", "U8", "[1,2]", repeat(1, 254) + repeat(1, scale)}},
                 kMxfp4)
        .status();
  };
  EXPECT_TRUE(four(0x77, 252).ok());  // 6 * 2^125
  EXPECT_TRUE(four(0x55, 253).ok());  // 3 * 2^126
  expect_refused(four(0x66, 253), Code::kInvalidFile, {"'x.weight_scale'", "[0, 1]", "253"});
  expect_refused(four(0x44, 254), Code::kInvalidFile, {"'x.weight_scale'", "[0, 1]", "254"});
  const auto eight = [](int code, int scale) {
    return Model({{"x.weight", "F8_E4M3", "[1,32]", repeat(32, code)},
                  {"x.weight_scale_inv", "U8", "[1,1]", repeat(1, scale)}},
                 kMxfp8)
        .status();
  };
  EXPECT_TRUE(eight(0x7e, 246).ok());
  EXPECT_TRUE(eight(0x70, 247).ok() == std::isfinite(std::ldexp(128.0F, 120)));
  expect_refused(eight(0x78, 247), Code::kInvalidFile, {"'x.weight_scale_inv'", "247"});
}

TEST(Faults_Format, StoredAndConfiguredFormatsMustAgree) {
  const Model plain({{"x.weight", "BF16", "[1,32]", repeat(64, 0)}}, kMxfp4);
  expect_refused(plain.status(), Code::kInvalidFile,
                 {"'x.weight'", "plain", "config.json", "mxfp4"});
  const Model unannounced(
      {{"x.weight", "U8", "[1,16]", repeat(16, 0)}, {"x.weight_scale", "U8", "[1,1]", "\x7f"}},
      nullptr);
  expect_refused(unannounced.status(), Code::kInvalidFile, {"'x.weight'", "mxfp4", "plain"});
  const Model other(
      {{"x.weight", "F8_E4M3", "[1,32]", repeat(32, 0)}, {"x.weight_scale", "U8", "[1,1]", "\x7f"}},
      kMxfp4);
  expect_refused(other.status(), Code::kInvalidFile, {"'x.weight'", "mxfp8", "mxfp4"});
  const Model scaled({{"x.weight", "BF16", "[1,2]", "abcd"}, {"x.weight_scale", "U8", "[1]", "a"}},
                     nullptr);
  expect_refused(scaled.status(), Code::kInvalidFile, {"'x.weight'", "'x.weight_scale'"});
  const Model ints({{"x.weight", "I32", "[1,1]", "abcd"}}, nullptr);
  expect_refused(ints.status(), Code::kUnsupported, {"'x.weight'", "I32"});
  const Model vector({{"x.weight", "BF16", "[2]", "abcd"}}, nullptr);
  expect_refused(vector.status(), Code::kInvalidFile, {"'x.weight'", "[2]", "matrix"});
  const Model nvfp4({{"x.weight_scale_2", "F32", "[]", repeat(4, 0)},
                     {"x.weight", "U8", "[1,16]", repeat(16, 0)},
                     {"x.weight_scale", "F8_E4M3", "[1,2]", "ab"}},
                    kMxfp4);
  expect_refused(nvfp4.status(), Code::kUnsupported, {"x.weight_scale_2", "NVFP4"});
}

// Fault 14: bytes swizzled by another engine keep the plain shape only if they say nothing; a shape
// padded for swizzling is caught.
TEST(Faults14_Swizzled, PaddedScaleShapeIsRefused) {
  const Model model({{"x.weight", "U8", "[2,16]", repeat(32, 0)},
                     {"x.weight_scale", "U8", "[128,4]", repeat(512, 127)}},
                    kMxfp4);
  expect_refused(model.status(), Code::kInvalidFile, {"'x.weight_scale'", "[128, 4]", "[2, 1]"});
}

// Fault 13: the last rows are the file's last rows, not padding or the next tensor.
TEST(Faults13_Stride, LastSliceOfAnOddRowCountEndsWithTheTensor) {
  std::vector<std::uint16_t> values(7 * 3);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::uint16_t>(0x3f80 + i);
  const Model model({{"x.weight", "BF16", "[7,3]", bytes_of(values)},
                     {"y.weight", "BF16", "[1,3]", repeat(6, 0x11)}},
                    nullptr);
  Result<QuantizedMatrix> last = slice_rows(*model.find(), 5, 7);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last->weight.data + last->weight.bytes,
            model.checkpoint->find("x.weight")->data + values.size() * 2);
  expect_refused(slice_rows(*model.find(), 5, 8).status(), Code::kInvalidArgument, {"'x.weight'"});
}

TEST(Faults_TruncatedAfterMapping, ValueScanOfACutFileIsAStatus) {
  const std::size_t size = std::size_t{4} << 20;
  const Model model({{"x.weight", "F8_E4M3", "[1024,4096]", repeat(size, 0)},
                     {"x.weight_scale_inv", "U8", "[1024,128]", repeat(size / 32, 127)}},
                    kMxfp8);
  Result<QuantizedMatrix> matrix = model.find("x", ValueCheck::kNone);
  ASSERT_TRUE(matrix.ok());
  std::filesystem::resize_file(model.dir.at("model.safetensors"), 8192);
  expect_refused(check_values(*matrix), Code::kIoError,
                 {model.dir.at("model.safetensors"), "8192"});
}

}  // namespace
}  // namespace monolayer

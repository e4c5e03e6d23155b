#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "checkpoint/expect_refused.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/temp_files.h"

namespace monolayer {
namespace {

using testing_files::bytes_of;
using testing_files::little_endian;
using testing_files::Piece;
using testing_files::safetensors;
using testing_files::TempDir;
using testing_files::write_file;

// The same bytes through both doors, which must agree.
Status open_status(const std::string& bytes) {
  const TempDir dir;
  const std::string path = write_file(dir.at("model.safetensors"), bytes);
  Status mapped = SafetensorsFile::open(path).status();
  const Status memory =
      SafetensorsFile::from_memory(path, std::as_bytes(std::span(bytes))).status();
  EXPECT_EQ(mapped.to_string(), memory.to_string());
  if (!mapped.ok()) expect_refused(mapped, mapped.code(), {path});
  return mapped;
}

Status header_status(const std::string& header, std::size_t data_bytes) {
  return open_status(safetensors(header, std::string(data_bytes, 'x')));
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

TEST(Safetensors, ReadsEveryDtypeInPlace) {
  const std::string data(64, 'a');
  const std::vector<Piece> pieces = {{"f64", "F64", "[2]", data.substr(0, 16)},
                                     {"i64", "I64", "[1]", data.substr(0, 8)},
                                     {"u64", "U64", "[1]", data.substr(0, 8)},
                                     {"f32", "F32", "[2,2]", data.substr(0, 16)},
                                     {"i32", "I32", "[1]", data.substr(0, 4)},
                                     {"u32", "U32", "[1]", data.substr(0, 4)},
                                     {"bf16", "BF16", "[1,3]", data.substr(0, 6)},
                                     {"f16", "F16", "[1]", data.substr(0, 2)},
                                     {"i16", "I16", "[1]", data.substr(0, 2)},
                                     {"u16", "U16", "[1]", data.substr(0, 2)},
                                     {"e4m3", "F8_E4M3", "[5]", data.substr(0, 5)},
                                     {"e5m2", "F8_E5M2", "[1]", "b"},
                                     {"e8m0", "F8_E8M0", "[1]", "c"},
                                     {"u8", "U8", "[1]", "d"},
                                     {"i8", "I8", "[1]", "e"},
                                     {"bool", "BOOL", "[1]", std::string(1, '\1')}};
  const std::string bytes = safetensors(pieces);
  Result<SafetensorsFile> file = SafetensorsFile::from_memory("m", std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  ASSERT_EQ(file->tensors().size(), pieces.size());
  EXPECT_EQ(file->copied_bytes(), 0U);
  for (const Piece& piece : pieces) {
    const TensorView* view = file->find(piece.name);
    ASSERT_NE(view, nullptr) << piece.name;
    EXPECT_EQ(dtype_name(view->dtype), piece.dtype);
    ASSERT_EQ(view->bytes, piece.bytes.size());
    EXPECT_EQ(std::memcmp(view->data, piece.bytes.data(), view->bytes), 0);
  }
  EXPECT_EQ(file->find("bf16")->shape, (Shape{1, 3}));
  EXPECT_EQ(file->find("absent"), nullptr);
}

TEST(Safetensors, ViewsSurviveMovingTheFile) {
  const TempDir dir;
  const std::string path = write_file(dir.at("f"), safetensors({{"a", "U8", "[3]", "xyz"}}));
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok());
  const TensorView view = *file->find("a");
  const SafetensorsFile moved = std::move(file).value();
  EXPECT_EQ(view.name, "a");
  EXPECT_EQ(view.file, path);
  EXPECT_EQ(std::memcmp(moved.find("a")->data, "xyz", 3), 0);
  EXPECT_EQ(moved.find("a")->data, view.data);
}

TEST(Safetensors, ReadsMetadataAndScalars) {
  const std::string bytes = safetensors(
      R"({"__metadata__":{"format":"pt","k":"v"},"s":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
      "x");
  Result<SafetensorsFile> file = SafetensorsFile::from_memory("m", std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ(file->find("s")->shape.rank(), 0);
}

TEST(Safetensors, UnpaddedHeaderIsReadThroughAlignedCopies) {
  // 8 + an odd header: every float starts at an odd address.
  const std::vector<float> values = {1.5F, -2.25F};
  std::string header =
      "{" + entry("w", "F32", "[2]", "[0,8]") + "," + entry("b", "U8", "[3]", "[8,11]") + "}";
  if (header.size() % 2 == 0) header += " ";
  const TempDir dir;
  const std::string path = write_file(dir.at("f"), safetensors(header, bytes_of(values) + "xyz"));
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->copied_bytes(), 8U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file->find("w")->data) % 4, 0U);
  EXPECT_EQ(file->find("w")->as<float>()[1], -2.25F);
  EXPECT_EQ(std::memcmp(file->find("b")->data, "xyz", 3), 0);
}

// --- 42: offsets, shapes and the bytes they claim -----------------------------------------------

TEST(Faults42_Offsets, ShapeAndRangeDisagree) {
  expect_refused(header_status("{" + entry("w", "F32", "[1000,1000]", "[0,4]") + "}", 4),
                 Code::kInvalidFile, {"'w'", "4 bytes", "4000000"});
  expect_refused(header_status("{" + entry("w", "BF16", "[2]", "[0,3]") + "}", 3),
                 Code::kInvalidFile, {"'w'"});
  expect_refused(header_status("{" + entry("w", "F32", "[]", "[0,0]") + "}", 0), Code::kInvalidFile,
                 {"'w'"});
}

TEST(Faults42_Offsets, Reversed) {
  expect_refused(header_status("{" + entry("w", "U8", "[4]", "[4,0]") + "}", 4), Code::kInvalidFile,
                 {"'w'", "[4, 0]", "reversed"});
}

TEST(Faults42_Offsets, Overlapping) {
  expect_refused(
      header_status(
          "{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[2,6]") + "}", 6),
      Code::kInvalidFile, {"'b'", "inside 'a'"});
  expect_refused(
      header_status(
          "{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[0,4]") + "}", 4),
      Code::kInvalidFile, {"'b'"});
}

TEST(Faults42_Offsets, BeyondTheEnd) {
  expect_refused(header_status("{" + entry("w", "U8", "[5]", "[0,5]") + "}", 4), Code::kInvalidFile,
                 {"'w'", "[0, 5]", "4 bytes"});
}

TEST(Faults42_Offsets, OddAndHuge) {
  expect_refused(header_status("{" + entry("w", "F32", "[1]", "[1,5]") + "}", 5),
                 Code::kInvalidFile, {"'w'", "gap"});
  for (const std::string huge :
       {"9223372036854775808", "18446744073709551615", "18446744073709551616", "1e30"}) {
    expect_refused(header_status("{" + entry("w", "U8", "[1]", "[0," + huge + "]") + "}", 1),
                   Code::kInvalidFile, {"'w'"});
    expect_refused(header_status("{" + entry("w", "U8", "[" + huge + "]", "[0,1]") + "}", 1),
                   Code::kInvalidFile, {"'w'"});
  }
  expect_refused(header_status("{" + entry("w", "U8", "[-1]", "[0,1]") + "}", 1),
                 Code::kInvalidFile, {"'w'", "shape", "negative"});
  expect_refused(header_status("{" + entry("w", "U8", "[1.0]", "[0,1]") + "}", 1),
                 Code::kInvalidFile, {"'w'", "shape"});
}

TEST(Faults42_Offsets, ProductOverflows) {
  // 2^32 * 2^32 = 2^64, which is 0 in 64 bits.
  expect_refused(header_status("{" + entry("w", "U8", "[4294967296,4294967296]", "[0,0]") + "}", 0),
                 Code::kInvalidFile, {"'w'", "overflow"});
  // 2^62 elements of 4 bytes.
  expect_refused(header_status("{" + entry("w", "F32", "[4611686018427387904]", "[0,0]") + "}", 0),
                 Code::kInvalidFile, {"'w'", "overflow"});
}

TEST(Faults42_Offsets, ZeroSizeTensorsAreLegal) {
  EXPECT_TRUE(header_status("{" + entry("w", "F32", "[0,128]", "[0,0]") + "}", 0).ok());
  EXPECT_TRUE(header_status("{" + entry("z", "F32", "[0,128]", "[2,2]") + "," +
                                entry("a", "BF16", "[1]", "[0,2]") + "," +
                                entry("b", "BF16", "[1]", "[2,4]") + "}",
                            4)
                  .ok());
  EXPECT_TRUE(header_status("{}", 0).ok());
  // ... but not inside another tensor.
  expect_refused(header_status("{" + entry("z", "F32", "[0]", "[1,1]") + "," +
                                   entry("a", "BF16", "[1]", "[0,2]") + "}",
                               2),
                 Code::kInvalidFile, {"'z'"});
}

// --- 43: one rule for rest, gaps, padding and repeats -------------------------------------------

TEST(Faults43_Layout, TrailingBytes) {
  expect_refused(header_status("{" + entry("w", "U8", "[4]", "[0,4]") + "}", 8), Code::kInvalidFile,
                 {"4 trailing bytes"});
  expect_refused(header_status("{}", 1), Code::kInvalidFile, {"1 trailing byte"});
}

TEST(Faults43_Layout, Gap) {
  expect_refused(
      header_status(
          "{" + entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[2]", "[4,6]") + "}", 6),
      Code::kInvalidFile, {"'b'", "gap", "4"});
}

TEST(Faults43_Layout, SpacePaddingIsLegal) {
  const std::string header = "{" + entry("w", "U8", "[4]", "[0,4]") + "}";
  EXPECT_TRUE(header_status(header + std::string(100, ' '), 4).ok());
  expect_refused(header_status(" " + header, 4), Code::kInvalidFile, {"'{'"});
  expect_refused(header_status(header + std::string(3, '\0'), 4), Code::kInvalidFile, {"JSON"});
  expect_refused(header_status(header + "{}", 4), Code::kInvalidFile, {"JSON"});
}

TEST(Faults43_Layout, DuplicateKeys) {
  const std::string w = entry("w", "U8", "[4]", "[0,4]");
  expect_refused(header_status("{" + w + "," + w + "}", 4), Code::kInvalidFile, {"'w'", "twice"});
  // The same name behind an escape.
  expect_refused(header_status("{" + w + "," + entry("\\u0077", "U8", "[4]", "[0,4]") + "}", 4),
                 Code::kInvalidFile, {"'w'", "twice"});
  expect_refused(
      header_status(R"({"w":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})", 4),
      Code::kInvalidFile, {"'w'", "'shape'", "twice"});
  expect_refused(header_status(R"({"__metadata__":{"a":"1","a":"2"}})", 0), Code::kInvalidFile,
                 {"'a'", "twice"});
  expect_refused(header_status(R"({"__metadata__":{},"__metadata__":{}})", 0), Code::kInvalidFile,
                 {"__metadata__", "twice"});
}

TEST(Faults43_Layout, WrongTypesNameTheField) {
  expect_refused(header_status(R"({"w":[1]})", 0), Code::kInvalidFile, {"'w'", "array"});
  expect_refused(header_status(R"({"w":null})", 0), Code::kInvalidFile, {"'w'", "null"});
  expect_refused(header_status(R"({"w":{"dtype":1}})", 0), Code::kInvalidFile, {"'w'", "'dtype'"});
  expect_refused(header_status(R"({"w":{"dtype":["U8"]}})", 0), Code::kInvalidFile, {"'dtype'"});
  expect_refused(header_status(R"({"w":{"shape":"4"}})", 0), Code::kInvalidFile, {"'shape'"});
  expect_refused(header_status(R"({"w":{"shape":[[4]]}})", 0), Code::kInvalidFile, {"shape"});
  expect_refused(header_status(R"({"w":{"shape":[true]}})", 0), Code::kInvalidFile, {"boolean"});
  expect_refused(header_status(R"({"w":{"data_offsets":[1]}})", 0), Code::kInvalidFile,
                 {"data_offsets", "1 numbers"});
  expect_refused(header_status(R"({"w":{"data_offsets":[1,2,3]}})", 0), Code::kInvalidFile,
                 {"data_offsets"});
  expect_refused(header_status(R"({"w":{"dtype":"U8","shape":[0]}})", 0), Code::kInvalidFile,
                 {"'data_offsets' is missing"});
  expect_refused(header_status(R"({"w":{"extra":{"a":1}}})", 0), Code::kInvalidFile, {"'extra'"});
  expect_refused(header_status(R"({"__metadata__":{"a":1}})", 0), Code::kInvalidFile,
                 {"__metadata__", "'a'"});
  expect_refused(header_status(R"({"__metadata__":{"a":{"b":"c"}}})", 0), Code::kInvalidFile,
                 {"__metadata__", "'a'"});
  expect_refused(header_status(R"({"__metadata__":"a"})", 0), Code::kInvalidFile, {"__metadata__"});
  expect_refused(header_status("{\"a\\u0000b\":{}}", 0), Code::kInvalidFile, {"NUL"});
  expect_refused(header_status("{\"\xff\":{}}", 0), Code::kInvalidFile, {"JSON"});
}

TEST(Faults43_Layout, Dtypes) {
  expect_refused(header_status("{" + entry("w", "F31", "[0]", "[0,0]") + "}", 0),
                 Code::kInvalidFile, {"'w'", "'F31'"});
  expect_refused(header_status("{" + entry("w", "F8_E4M3FNUZ", "[0]", "[0,0]") + "}", 0),
                 Code::kUnsupported, {"'w'", "F8_E4M3FNUZ"});
  expect_refused(header_status("{" + entry("w", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1),
                 Code::kUnsupported, {"'w'", "8 dimensions"});
}

TEST(Faults43_Layout, LongNamesStayReadable) {
  const std::string name(1'000'000, 'n');
  const Status status = header_status("{" + entry(name, "F31", "[0]", "[0,0]") + "}", 0);
  expect_refused(status, Code::kInvalidFile, {"1000000 bytes"});
  EXPECT_LT(status.to_string().size(), 1000U);
}

// --- 44: things that are no safetensors file at all ---------------------------------------------

TEST(Faults44_Foreign, EmptyShortAndFolder) {
  expect_refused(open_status(""), Code::kInvalidFile, {"empty"});
  expect_refused(open_status("1234567"), Code::kInvalidFile, {"7 bytes"});
  expect_refused(open_status(little_endian(0)), Code::kInvalidFile, {"'{'"});
  const TempDir dir;
  expect_refused(SafetensorsFile::open(dir.path()).status(), Code::kInvalidFile,
                 {dir.path(), "folder"});
}

TEST(Faults44_Foreign, HtmlAndOtherFormatsAreNamed) {
  expect_refused(open_status("<!DOCTYPE html><html><body>404</body></html>"), Code::kInvalidFile,
                 {"HTML"});
  expect_refused(open_status("\n  <html>"), Code::kInvalidFile, {"HTML"});
  // 37 bytes of GGUF with a key of length 0.
  std::string gguf = "GGUF" + std::string("\3\0\0\0", 4) + little_endian(0) + little_endian(1) +
                     little_endian(0) + std::string(5, '\0');
  ASSERT_EQ(gguf.size(), 37U);
  expect_refused(open_status(gguf), Code::kInvalidFile, {"GGUF"});
  expect_refused(open_status("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
                 Code::kInvalidFile, {"Git LFS"});
  expect_refused(open_status(std::string("PK\3\4aaaaaaaaaaaa")), Code::kInvalidFile, {"zip"});
}

TEST(Faults44_Foreign, HeaderLengthOutOfBounds) {
  expect_refused(open_status(little_endian(kMaxHeaderBytes + 1) + "{}"), Code::kInvalidFile,
                 {"100000001", "100000000"});
  expect_refused(open_status(little_endian(std::uint64_t{1} << 63) + "{}"), Code::kInvalidFile,
                 {"9223372036854775808"});
  expect_refused(open_status(little_endian(UINT64_MAX) + "{}"), Code::kInvalidFile, {"100000000"});
  expect_refused(open_status(little_endian(3) + "{}"), Code::kInvalidFile, {"3 bytes", "10 bytes"});
}

TEST(Faults44_Foreign, DeepNestingNeitherRecursesNorCrashes) {
  expect_refused(header_status("{\"a\":" + std::string(2'000'000, '['), 0), Code::kInvalidFile,
                 {"'a'"});
}

TEST(Faults_Truncated, ByOneByteAndByMegabytes) {
  const TempDir dir;
  const std::string whole = safetensors({{"a", "U8", "[3000000]", std::string(3'000'000, 'a')},
                                         {"last", "U8", "[2000000]", std::string(2'000'000, 'b')}});
  for (const std::size_t cut : {std::size_t{1}, std::size_t{1} << 20, std::size_t{4} << 20}) {
    const std::string path = write_file(dir.at("f"), whole.substr(0, whole.size() - cut));
    const Status status = SafetensorsFile::open(path).status();
    expect_refused(status, Code::kInvalidFile,
                   {path, "truncated", std::to_string(5'000'000 - cut)});
  }
  // Every cut inside the header, too.
  const std::size_t header_end = whole.size() - 5'000'000;
  for (std::size_t size = 0; size < header_end; ++size)
    EXPECT_EQ(open_status(whole.substr(0, size)).code(), Code::kInvalidFile) << size;
}

TEST(Tensor, SlicesRowsWithoutCopying) {
  std::vector<std::uint16_t> values(2 * 3 * 4);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
  const TensorView stacked{
      DType::kBF16,      {2, 3, 4}, reinterpret_cast<const std::byte*>(values.data()),
      values.size() * 2, "w",       "f"};
  Result<TensorView> second = select_first(stacked, 1);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->shape, (Shape{3, 4}));
  EXPECT_EQ(second->as<std::uint16_t>(), values.data() + 12);
  EXPECT_EQ(second->bytes, 24U);
  Result<TensorView> rows = slice_rows(*second, 1, 3);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->shape, (Shape{2, 4}));
  EXPECT_EQ(rows->as<std::uint16_t>()[0], 16);
  EXPECT_EQ(slice_rows(*second, 3, 3)->bytes, 0U);
  expect_refused(slice_rows(*second, 2, 4).status(), Code::kInvalidArgument, {"'w'", "[3, 4]"});
  expect_refused(slice_rows(*second, 2, 1).status(), Code::kInvalidArgument, {"'w'"});
  expect_refused(slice_rows(*second, -1, 1).status(), Code::kInvalidArgument, {"'w'"});
  expect_refused(select_first(stacked, 2).status(), Code::kInvalidArgument, {"'w'"});
  expect_refused(expect_shape(stacked, {2, 3}), Code::kInvalidFile, {"'w'", "[2, 3, 4]", "[2, 3]"});
  expect_refused(expect_dtype(stacked, DType::kF32), Code::kInvalidFile, {"BF16", "F32"});
  EXPECT_FALSE((Shape{1 << 20, 1 << 20, 1 << 20, 1 << 20}).elements().has_value());
  EXPECT_EQ((Shape{INT64_MAX, 0, INT64_MAX}).elements(), 0);
}

}  // namespace
}  // namespace monolayer

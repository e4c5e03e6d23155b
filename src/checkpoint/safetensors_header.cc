#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName kDTypes[] = {
    {"F32", DType::kF32},      {"BF16", DType::kBF16},    {"F16", DType::kF16},
    {"F8_E4M3", DType::kE4M3}, {"F8_E8M0", DType::kE8M0}, {"U8", DType::kU8},
    {"I32", DType::kI32},      {"I64", DType::kI64},      {"F64", DType::kF64},
    {"F8_E5M2", DType::kE5M2}, {"I8", DType::kI8},        {"BOOL", DType::kBool},
    {"I16", DType::kI16},      {"U16", DType::kU16},      {"U32", DType::kU32},
    {"U64", DType::kU64}};
// Names other writers use that no tensor of a supported layout has.
constexpr std::string_view kForeignDTypes[] = {"F4",          "F6_E2M3",     "F6_E3M2",
                                               "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"};

// Builds the header event by event. Every handler returns false after storing the refusal, which
// ends the parse.
class HeaderSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderSax(SafetensorsHeader& header, const std::string& file, std::size_t json_bytes)
      : header_(header), file_(file), json_bytes_(json_bytes) {}

  Status take_status() { return std::move(status_); }

  bool null() override { return wrong_value("null"); }
  bool boolean(bool) override { return wrong_value("a boolean"); }
  bool number_integer(number_integer_t) override { return wrong_value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return wrong_value("a number that is no 64-bit integer");
  }
  bool binary(binary_t&) override { return wrong_value("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<std::uint64_t>(INT64_MAX))
        return refuse(tensor_ + ": shape has dimension " + std::to_string(value) +
                      ", at most 2^63 - 1");
      if (!entry_.shape.push_back(static_cast<std::int64_t>(value)))
        return refuse(tensor_ + ": more than " + std::to_string(Shape::kMaxRank) + " dimensions",
                      Code::kUnsupported);
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offset_count_ == 2) return refuse(tensor_ + ": data_offsets has more than 2 numbers");
      (offset_count_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return wrong_value("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return wrong_value("a string");
    for (const DTypeName& known : kDTypes) {
      if (known.name == value) {
        entry_.dtype = known.dtype;
        return true;
      }
    }
    for (const std::string_view foreign : kForeignDTypes) {
      if (foreign == value)
        return refuse(tensor_ + ": dtype " + value + " is not supported", Code::kUnsupported);
    }
    return refuse(tensor_ + ": unknown dtype " + quote_name(value));
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return wrong_value("an object");
    if (key_ == "__metadata__") {
      place_ = Place::kMetadata;
      inner_keys_.clear();
      return true;
    }
    place_ = Place::kTensor;
    entry_ = {};
    entry_.name = key_;
    tensor_ = "tensor " + quote_name(key_);
    seen_ = 0;
    return true;
  }

  bool key(string_t& value) override {
    if (value.find('\0') != string_t::npos) return refuse("a name holds a NUL character");
    key_ = value;
    if (place_ == Place::kTop) {
      if (!names_.insert(value).second)
        return refuse("name " + quote_name(value) + " appears twice");
      return true;
    }
    if (place_ == Place::kMetadata) {
      if (!inner_keys_.insert(value).second)
        return refuse("__metadata__: key " + quote_name(value) + " appears twice");
      return true;
    }
    const unsigned bit = value == "dtype" ? 1U : value == "shape" ? 2U : 4U;
    if (bit == 4U && value != "data_offsets")
      return refuse(tensor_ + ": unknown field " + quote_name(value));
    if ((seen_ & bit) != 0)
      return refuse(tensor_ + ": field " + quote_name(value) + " appears twice");
    seen_ |= bit;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (seen_ != 7U) {
        const char* missing = (seen_ & 1U) == 0   ? "dtype"
                              : (seen_ & 2U) == 0 ? "shape"
                                                  : "data_offsets";
        return refuse(tensor_ + ": field '" + missing + "' is missing");
      }
      header_.tensors.push_back(std::move(entry_));
    }
    place_ = place_ == Place::kTop ? Place::kDone : Place::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") return wrong_value("an array");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    offset_count_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offset_count_ != 2)
      return refuse(tensor_ + ": data_offsets has " + std::to_string(offset_count_) +
                    " numbers, expected 2");
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    return refuse("header is not valid JSON at its byte " + std::to_string(position) + " of " +
                  std::to_string(json_bytes_));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kDone };

  bool refuse(std::string message, Code code = Code::kInvalidFile) {
    status_ = Status(code, file_, std::move(message));
    return false;
  }

  bool wrong_value(const std::string& found) {
    switch (place_) {
      case Place::kTop:
        return refuse((key_ == "__metadata__" ? key_ : "tensor " + quote_name(key_)) + " is " +
                      found + ", expected an object");
      case Place::kMetadata:
        return refuse("__metadata__: " + quote_name(key_) + " is " + found + ", expected a string");
      case Place::kTensor:
        return refuse(tensor_ + ": field " + quote_name(key_) + " is " + found + ", expected " +
                      (key_ == "dtype" ? "a string" : "an array of integers"));
      case Place::kShape:
      case Place::kOffsets:
        return refuse(tensor_ + ": " + (place_ == Place::kShape ? "shape" : "data_offsets") +
                      " holds " + found + ", expected integers from 0 to 2^63 - 1");
      default:
        return refuse("header is " + found + ", expected an object");
    }
  }

  SafetensorsHeader& header_;
  const std::string& file_;
  std::size_t json_bytes_;
  Status status_;
  Place place_ = Place::kStart;
  HeaderEntry entry_;
  std::string key_, tensor_;
  unsigned seen_ = 0;  // bits: dtype, shape, data_offsets
  int offset_count_ = 0;
  std::unordered_set<std::string> names_, inner_keys_;
};

// One tensor by itself: its range lies in the data and is as long as dtype and shape say.
Status check_range(const HeaderEntry& entry, std::uint64_t data_bytes, const std::string& file) {
  const auto refuse = [&](const std::string& message) {
    return Status(Code::kInvalidFile, file, "tensor " + quote_name(entry.name) + ": " + message);
  };
  const std::string range =
      "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
  if (entry.begin > entry.end) return refuse(range + " are reversed");
  if (entry.end > data_bytes) {
    return refuse(range + " end beyond the " + std::to_string(data_bytes) +
                  " bytes of data in the file (truncated?)");
  }
  const std::optional<std::int64_t> elements = entry.shape.elements();
  std::int64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(
                       *elements, static_cast<std::int64_t>(dtype_size(entry.dtype)), &bytes)) {
    return refuse("shape " + entry.shape.to_string() + " overflows 63 bits of bytes");
  }
  if (static_cast<std::uint64_t>(bytes) != entry.end - entry.begin) {
    return refuse(range + " hold " + std::to_string(entry.end - entry.begin) + " bytes, " +
                  std::string(dtype_name(entry.dtype)) + " " + entry.shape.to_string() + " needs " +
                  std::to_string(bytes));
  }
  return ok_status();
}

// All tensors together: sorted by place, they tile the data exactly.
Status check_tiling(std::vector<HeaderEntry>& tensors, std::uint64_t data_bytes,
                    const std::string& file) {
  std::sort(tensors.begin(), tensors.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].begin != expected) {
      const bool overlap = tensors[i].begin < expected;
      return {Code::kInvalidFile, file,
              "tensor " + quote_name(tensors[i].name) + " begins at data byte " +
                  std::to_string(tensors[i].begin) + ", " +
                  (overlap ? "inside " + quote_name(tensors[i - 1].name) + ", which ends"
                           : std::string("after a gap: the data before it ends")) +
                  " at " + std::to_string(expected)};
    }
    expected = tensors[i].end;
  }
  if (expected != data_bytes) {
    return {Code::kInvalidFile, file,
            std::to_string(data_bytes - expected) +
                " trailing bytes after the last tensor, which "
                "ends at data byte " +
                std::to_string(expected)};
  }
  return ok_status();
}

}  // namespace

std::optional<std::string_view> safetensors_dtype_name(DType dtype) {
  for (const DTypeName& known : kDTypes) {
    if (known.dtype == dtype) return known.name;
  }
  return std::nullopt;
}

Result<std::size_t> header_length(std::span<const std::byte> first, std::size_t file_bytes,
                                  const std::string& file) {
  const auto refuse = [&](const std::string& message) {
    return Status(Code::kInvalidFile, file, message);
  };
  if (file_bytes == 0) return refuse("is empty, expected a safetensors file");
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  const std::string_view known = known_format(text);
  if (!known.empty()) return refuse("is " + std::string(known) + ", expected a safetensors file");
  if (file_bytes < 8 || first.size() < 8) {
    return refuse("holds " + std::to_string(file_bytes) +
                  " bytes, a safetensors file has at least 8");
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | std::to_integer<std::uint64_t>(first[static_cast<std::size_t>(i)]);
  }
  if (length > kMaxHeaderBytes) {
    return refuse("header length is " + std::to_string(length) + ", at most " +
                  std::to_string(kMaxHeaderBytes) + " (not a safetensors file?)");
  }
  if (length > file_bytes - 8) {
    return refuse("header of " + std::to_string(length) + " bytes ends beyond the file of " +
                  std::to_string(file_bytes) + " bytes");
  }
  return static_cast<std::size_t>(length);
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                   const std::string& file) {
  if (json.empty() || json[0] != '{')
    return Status(Code::kInvalidFile, file, "header does not begin with '{'");
  // The JSON library takes a NUL byte for the end of its input.
  if (const std::size_t nul = json.find('\0'); nul != std::string_view::npos) {
    return Status(Code::kInvalidFile, file,
                  "header is not valid JSON: NUL at its byte " + std::to_string(nul));
  }
  try {
    SafetensorsHeader header;
    HeaderSax sax(header, file, json.size());
    if (!nlohmann::json::sax_parse(json.begin(), json.end(), &sax)) return sax.take_status();
    for (const HeaderEntry& entry : header.tensors)
      ML_RETURN_IF_ERROR(check_range(entry, data_bytes, file));
    ML_RETURN_IF_ERROR(check_tiling(header.tensors, data_bytes, file));
    return header;
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, file,
                  "not enough memory for a header of " + std::to_string(json.size()) + " bytes");
  }
}

}  // namespace monolayer

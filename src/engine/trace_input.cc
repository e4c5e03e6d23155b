// Token ids and rows of a trace, from JSON or safetensors.
#include <charconv>
#include <cstring>

#include <nlohmann/json.hpp>

#include "checkpoint/file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/text_io.h"
#include "engine/trace.h"

namespace monolayer::engine {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kMaxJsonBytes = std::size_t{256} << 20;

struct RawInput {
  std::vector<std::int64_t> ids, rows;
  bool has_rows = false;
};

Result<std::vector<std::int64_t>> json_numbers(const Json& list, const std::string& path,
                                               const char* field) {
  if (!list.is_array())
    return Status(Code::kInvalidFile, path, std::string(field) + " is no list of whole numbers");
  std::vector<std::int64_t> numbers;
  numbers.reserve(list.size());
  for (const Json& value : list) {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX))
      return Status(Code::kInvalidFile, path,
                    std::string(field) + "[" + std::to_string(numbers.size()) +
                        "] is no whole number of 64 bits");
    numbers.push_back(value.get<std::int64_t>());
  }
  return numbers;
}

Result<RawInput> read_json(const std::string& path) {
  ML_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxJsonBytes));
  ML_ASSIGN_OR_RETURN(const Json root, parse_json(text, path));
  RawInput raw;
  if (root.is_object()) {
    if (!root.contains("input_ids")) return Status(Code::kInvalidFile, path, "has no input_ids");
    ML_ASSIGN_OR_RETURN(raw.ids, json_numbers(root["input_ids"], path, "input_ids"));
    raw.has_rows = root.contains("rows");
    if (raw.has_rows) {
      ML_ASSIGN_OR_RETURN(raw.rows, json_numbers(root["rows"], path, "rows"));
    }
    return raw;
  }
  ML_ASSIGN_OR_RETURN(raw.ids, json_numbers(root, path, "input_ids"));
  return raw;
}

Result<std::vector<std::int64_t>> tensor_numbers(const TensorView& tensor) {
  const bool vector =
      tensor.shape.rank() == 1 || (tensor.shape.rank() == 2 && tensor.shape[0] == 1);
  if (!vector || (tensor.dtype != DType::kI32 && tensor.dtype != DType::kI64))
    return Status(Code::kInvalidFile, std::string(tensor.file),
                  std::string(tensor.name) + " is " + std::string(dtype_name(tensor.dtype)) + " " +
                      tensor.shape.to_string() + ", expected I32 or I64 [n]");
  const auto count = static_cast<std::size_t>(tensor.shape.elements().value_or(0));
  std::vector<std::int64_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i)
    numbers[i] =
        tensor.dtype == DType::kI32 ? tensor.as<std::int32_t>()[i] : tensor.as<std::int64_t>()[i];
  return numbers;
}

Result<RawInput> read_safetensors(const std::string& path) {
  ML_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  const TensorView* ids = file.find("input_ids");
  if (ids == nullptr) return Status(Code::kInvalidFile, path, "has no tensor input_ids");
  RawInput raw;
  ML_ASSIGN_OR_RETURN(raw.ids, tensor_numbers(*ids));
  if (const TensorView* rows = file.find("rows")) {
    raw.has_rows = true;
    ML_ASSIGN_OR_RETURN(raw.rows, tensor_numbers(*rows));
  }
  return raw;
}

// The upper half of a safetensors header length is zero; JSON text has no zero bytes.
Result<bool> is_safetensors(const std::string& path) {
  ML_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  if (file.size() == 0) return Status(Code::kInvalidFile, path, "is empty");
  return file.size() >= 8 && file.bytes()[7] == std::byte{0};
}

Status check_rows(const std::vector<std::int32_t>& rows, std::int64_t count,
                  const std::string& subject) {
  std::vector<bool> seen(static_cast<std::size_t>(count));
  for (const std::int32_t row : rows) {
    if (seen[static_cast<std::size_t>(row)])
      return {Code::kInvalidArgument, subject, "names row " + std::to_string(row) + " twice"};
    seen[static_cast<std::size_t>(row)] = true;
  }
  return rows.empty() ? Status(Code::kInvalidArgument, subject, "names no row") : ok_status();
}

std::vector<std::int32_t> all_rows(std::int64_t count) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
  return rows;
}

}  // namespace

Result<std::vector<std::int32_t>> parse_rows(const std::string& text, std::int64_t count) {
  if (text == "all") return all_rows(count);
  const auto bad = [&](std::string_view item) {
    return Status(
        Code::kInvalidArgument, "--rows",
        quote_name(item) + " is no row or range a-b of rows below " + std::to_string(count));
  };
  std::vector<std::int32_t> rows;
  std::string_view rest = text;
  while (true) {
    const auto comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    std::int64_t first = 0;
    const char* end = item.data() + item.size();
    auto parsed = std::from_chars(item.data(), end, first);
    std::int64_t last = first;
    if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-')
      parsed = std::from_chars(parsed.ptr + 1, end, last);
    if (parsed.ec != std::errc() || parsed.ptr != end || first < 0 || last < first || last >= count)
      return bad(item);
    if (static_cast<std::int64_t>(rows.size()) + last - first >= count)
      return Status(Code::kInvalidArgument, "--rows", "names more rows than there are");
    for (std::int64_t row = first; row <= last; ++row) rows.push_back(static_cast<int>(row));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  ML_RETURN_IF_ERROR(check_rows(rows, count, "--rows"));
  return rows;
}

Result<TraceInput> read_trace_input(const std::string& path, const std::string& rows_text,
                                    std::int64_t vocab_size) {
  ML_ASSIGN_OR_RETURN(const bool binary, is_safetensors(path));
  ML_ASSIGN_OR_RETURN(const RawInput raw, binary ? read_safetensors(path) : read_json(path));
  if (raw.ids.empty()) return Status(Code::kInvalidFile, path, "input_ids holds no token");
  TraceInput input;
  for (std::size_t i = 0; i < raw.ids.size(); ++i) {
    if (raw.ids[i] < 0 || raw.ids[i] >= vocab_size)
      return Status(Code::kInvalidFile, path,
                    "input_ids[" + std::to_string(i) + "] is " + std::to_string(raw.ids[i]) +
                        ", must be from 0 to " + std::to_string(vocab_size - 1));
    input.input_ids.push_back(static_cast<std::int32_t>(raw.ids[i]));
  }
  const auto count = static_cast<std::int64_t>(input.input_ids.size());
  if (!rows_text.empty()) {
    ML_ASSIGN_OR_RETURN(input.rows, parse_rows(rows_text, count));
    return input;
  }
  if (!raw.has_rows) {
    input.rows = all_rows(count);
    return input;
  }
  for (const std::int64_t row : raw.rows) {
    if (row < 0 || row >= count)
      return Status(
          Code::kInvalidFile, path,
          "rows holds " + std::to_string(row) + ", must be from 0 to " + std::to_string(count - 1));
    input.rows.push_back(static_cast<std::int32_t>(row));
  }
  ML_RETURN_IF_ERROR(check_rows(input.rows, count, path));
  return input;
}

}  // namespace monolayer::engine

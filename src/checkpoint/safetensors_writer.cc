#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/output_file.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/text_io.h"

namespace monolayer {

struct SafetensorsWriter::State {
  struct Range {
    std::uint64_t next = 0, end = 0;  // file offsets
  };
  OutputFile file;
  std::uint64_t file_bytes = 0;
  std::map<std::string, Range, std::less<>> ranges;
};

void SafetensorsWriter::Delete::operator()(State* state) const { delete state; }

namespace {

DType stored_dtype(DType dtype) { return dtype == DType::kE2M1x2 ? DType::kU8 : dtype; }

Status refuse(const std::string& path, const std::string& message) {
  return {Code::kInvalidArgument, path, message};
}

Result<std::uint64_t> planned_bytes(const TensorPlan& tensor, const std::string& path) {
  const std::optional<std::int64_t> elements = tensor.shape.elements();
  std::int64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(
                       *elements, static_cast<std::int64_t>(dtype_size(tensor.dtype)), &bytes)) {
    return refuse(path, "tensor " + quote_name(tensor.name) + ": shape " +
                            tensor.shape.to_string() + " overflows 63 bits of bytes");
  }
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::string& path, const std::vector<TensorPlan>& tensors,
    const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer;
  writer.state_.reset(new State);
  State& state = *writer.state_;
  // Wide elements first: without gaps between tensors this is what keeps all of them aligned.
  std::vector<const TensorPlan*> order;
  order.reserve(tensors.size());
  for (const TensorPlan& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const TensorPlan* a, const TensorPlan* b) {
    return dtype_size(a->dtype) > dtype_size(b->dtype);
  });
  std::uint64_t data_bytes = 0;
  std::string header = "{";
  try {
    // Put together by hand: building one JSON value of some ten thousand ordered keys is quadratic.
    if (!metadata.empty()) header += "\"__metadata__\":" + nlohmann::json(metadata).dump();
    for (const TensorPlan* tensor : order) {
      if (tensor->name == "__metadata__" || tensor->name.find('\0') != std::string::npos)
        return refuse(path, "no tensor may be called " + quote_name(tensor->name));
      ML_ASSIGN_OR_RETURN(const std::uint64_t bytes, planned_bytes(*tensor, path));
      const std::uint64_t begin = data_bytes;
      if (__builtin_add_overflow(data_bytes, bytes, &data_bytes))
        return refuse(path, "the tensors overflow 64 bits of bytes");
      if (!state.ranges.emplace(tensor->name, State::Range{begin, data_bytes}).second)
        return refuse(path, "tensor " + quote_name(tensor->name) + " is announced twice");
      if (header.size() > 1) header += ',';
      header += nlohmann::json(tensor->name).dump() + ":{\"dtype\":\"";
      header += *safetensors_dtype_name(stored_dtype(tensor->dtype));
      header += "\",\"shape\":" + tensor->shape.to_string() + ",\"data_offsets\":[";
      header += std::to_string(begin) + "," + std::to_string(data_bytes) + "]}";
    }
  } catch (const nlohmann::json::exception&) {
    return refuse(path, "a tensor name or metadata value is not UTF-8");
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  if (header.size() > kMaxHeaderBytes) {
    return refuse(path, "a header of " + std::to_string(header.size()) + " bytes, at most " +
                            std::to_string(kMaxHeaderBytes));
  }
  const std::uint64_t data_begin = 8 + header.size();
  for (auto& [name, range] : state.ranges) {
    range.next += data_begin;
    range.end += data_begin;
  }
  state.file_bytes = data_begin + data_bytes;
  ML_ASSIGN_OR_RETURN(state.file, OutputFile::create(path));
  ML_RETURN_IF_ERROR(state.file.reserve(state.file_bytes));
  std::string first(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) first[i] = static_cast<char>(header.size() >> 8 * i & 0xff);
  first += header;
  ML_RETURN_IF_ERROR(state.file.write_at(0, std::as_bytes(std::span(first))));
  return writer;
}

Status SafetensorsWriter::write(std::string_view tensor, std::span<const std::byte> bytes) {
  const auto at = state_->ranges.find(tensor);
  if (at == state_->ranges.end())
    return refuse(path(), "tensor " + quote_name(tensor) + " was not announced");
  State::Range& range = at->second;
  if (bytes.size() > range.end - range.next) {
    return refuse(path(), "tensor " + quote_name(tensor) + " gets " + std::to_string(bytes.size()) +
                              " bytes more, " + std::to_string(range.end - range.next) +
                              " are left of it");
  }
  ML_RETURN_IF_ERROR(state_->file.write_at(range.next, bytes));
  range.next += bytes.size();
  return ok_status();
}

Status SafetensorsWriter::sync() {
  for (const auto& [name, range] : state_->ranges) {
    if (range.next != range.end) {
      return refuse(path(), "tensor " + quote_name(name) + " lacks " +
                                std::to_string(range.end - range.next) + " bytes");
    }
  }
  return state_->file.sync();
}

Status SafetensorsWriter::rename() { return state_->file.rename(); }

Status SafetensorsWriter::finish() {
  ML_RETURN_IF_ERROR(sync());
  return rename();
}

const std::string& SafetensorsWriter::path() const { return state_->file.path(); }
std::uint64_t SafetensorsWriter::file_bytes() const { return state_->file_bytes; }

Status write_text_file(const std::string& path, std::string_view text) {
  ML_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  ML_RETURN_IF_ERROR(file.write_at(0, std::as_bytes(std::span(text))));
  ML_RETURN_IF_ERROR(file.sync());
  return file.rename();
}

}  // namespace monolayer

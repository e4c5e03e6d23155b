#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "checkpoint/read_guard.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/text_io.h"

namespace monolayer {

struct SafetensorsFile::State {
  std::string path;
  MappedFile mapping;
  SafetensorsHeader header;  // owns the names
  std::vector<TensorView> tensors;
  std::vector<std::unique_ptr<std::uint64_t[]>> copies;
  std::size_t file_bytes = 0, copied_bytes = 0;
};

void SafetensorsFile::Delete::operator()(State* state) const { delete state; }

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path, const MapOptions& options) {
  ML_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::open(path, options));
  SafetensorsFile file;
  file.state_.reset(new State);
  file.state_->path = path;
  file.state_->mapping = std::move(mapping);
  ML_RETURN_IF_ERROR(file.read(file.state_->mapping.bytes()));
  return file;
}

Result<SafetensorsFile> SafetensorsFile::from_memory(const std::string& name,
                                                     std::span<const std::byte> bytes) {
  SafetensorsFile file;
  file.state_.reset(new State);
  file.state_->path = name;
  ML_RETURN_IF_ERROR(file.read(bytes));
  return file;
}

Status SafetensorsFile::read(std::span<const std::byte> bytes) {
  State& state = *state_;
  state.file_bytes = bytes.size();
  // The parsers work on copies: a fault must not unwind through them.
  std::byte first[256] = {};
  const std::size_t first_count = std::min(sizeof(first), bytes.size());
  ML_RETURN_IF_ERROR(guard_reads([&] { std::copy_n(bytes.data(), first_count, first); }));
  ML_ASSIGN_OR_RETURN(const std::size_t length,
                      header_length({first, first_count}, bytes.size(), state.path));
  std::string json(length, '\0');
  ML_RETURN_IF_ERROR(guard_reads([&] { std::memcpy(json.data(), bytes.data() + 8, length); }));
  const std::span<const std::byte> data = bytes.subspan(8 + length);
  ML_ASSIGN_OR_RETURN(state.header, parse_safetensors_header(json, data.size(), state.path));

  state.tensors.reserve(state.header.tensors.size());
  for (const HeaderEntry& entry : state.header.tensors) {
    TensorView view{entry.dtype, entry.shape, data.data() + entry.begin, entry.end - entry.begin,
                    entry.name,  state.path};
    if (view.bytes > 0 && reinterpret_cast<std::uintptr_t>(view.data) % dtype_size(view.dtype)) {
      std::unique_ptr<std::uint64_t[]> copy(new (std::nothrow) std::uint64_t[view.bytes / 8 + 1]);
      if (copy == nullptr) {
        return {Code::kResourceExhausted, state.path,
                "not enough memory to align tensor " + quote_name(entry.name) + " of " +
                    std::to_string(view.bytes) + " bytes"};
      }
      ML_RETURN_IF_ERROR(guard_reads([&] { std::memcpy(copy.get(), view.data, view.bytes); }));
      view.data = reinterpret_cast<const std::byte*>(copy.get());
      state.copied_bytes += view.bytes;
      state.copies.push_back(std::move(copy));
    }
    state.tensors.push_back(view);
  }
  std::sort(state.tensors.begin(), state.tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return state.mapping.verify_unchanged();
}

const std::vector<TensorView>& SafetensorsFile::tensors() const { return state_->tensors; }

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(
      state_->tensors.begin(), state_->tensors.end(), name,
      [](const TensorView& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return at != state_->tensors.end() && at->name == name ? &*at : nullptr;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->header.metadata;
}
const std::string& SafetensorsFile::path() const { return state_->path; }
std::size_t SafetensorsFile::file_bytes() const { return state_->file_bytes; }
std::size_t SafetensorsFile::copied_bytes() const { return state_->copied_bytes; }
const MappedFile& SafetensorsFile::mapping() const { return state_->mapping; }

}  // namespace monolayer

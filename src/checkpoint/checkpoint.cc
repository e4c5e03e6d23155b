#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/model_source.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxIndexBytes = std::size_t{100} << 20;
// Files whose tensors are arranged for some kernel say so here; without it they are plain.
constexpr const char* kLayoutKey = "monolayer.layout";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Opens the shards an index names and holds the two against each other.
Result<std::vector<SafetensorsFile>> open_shards(const ModelSource& source,
                                                 const ShardIndex& index) {
  const std::string index_name = source.name_of(kIndex);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index.shard_of) shards.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& shard : shards) {
    if (!source.has(shard)) missing.push_back(shard);
  }
  if (!missing.empty()) {
    return Status(Code::kInvalidFile, index_name,
                  std::to_string(missing.size()) + " of " + std::to_string(shards.size()) +
                      " shards are missing: " + list_names(missing));
  }
  std::vector<SafetensorsFile> files;
  std::vector<std::string> unlisted;
  std::size_t found = 0;
  for (const std::string& shard : shards) {
    ML_ASSIGN_OR_RETURN(SafetensorsFile file, source.tensors(shard));
    for (const TensorView& tensor : file.tensors()) {
      const auto at = index.shard_of.find(tensor.name);
      if (at == index.shard_of.end()) {
        unlisted.emplace_back(tensor.name);
      } else if (at->second != shard) {
        return Status(Code::kInvalidFile, file.path(),
                      "holds tensor " + quote_name(tensor.name) + ", which the index places in " +
                          quote_name(at->second));
      } else {
        ++found;
      }
    }
    files.push_back(std::move(file));
  }
  if (!unlisted.empty()) {
    return Status(Code::kInvalidFile, index_name,
                  std::to_string(unlisted.size()) +
                      " tensors of the shards are not in the index: " + list_names(unlisted));
  }
  if (found == index.shard_of.size()) return files;
  std::vector<std::string> absent;
  for (const auto& [tensor, shard] : index.shard_of) {
    const auto file = std::find_if(files.begin(), files.end(), [&, &name = shard](const auto& f) {
      return f.path() == source.name_of(name);
    });
    if (file->find(tensor) == nullptr) absent.push_back(tensor);
  }
  return Status(Code::kInvalidFile, index_name,
                std::to_string(absent.size()) +
                    " tensors of the index are not in their shards: " + list_names(absent));
}

// Files that look like part of a model but are not part of this one.
Status check_strays(const ModelSource& source, const std::set<std::string>& used) {
  ML_ASSIGN_OR_RETURN(const std::vector<std::string> names, source.list());
  std::vector<std::string> strays;
  for (const std::string& name : names) {
    if (used.count(name) == 0 && (looks_like_shard(name) || name == kSingle))
      strays.push_back(name);
  }
  if (strays.empty()) return ok_status();
  return {Code::kInvalidFile, source.name_of(used.size() == 1 ? *used.begin() : kIndex),
          "stray model files beside it: " + list_names(strays) +
              " (remove them, or name them in the index)"};
}

Result<std::vector<SafetensorsFile>> open_files(const ModelSource& source,
                                                const std::string& folder,
                                                std::vector<std::string>& notes) {
  if (source.has(kIndex)) {
    ML_ASSIGN_OR_RETURN(const std::string text, source.text(kIndex, kMaxIndexBytes));
    ML_ASSIGN_OR_RETURN(const ShardIndex index, parse_shard_index(text, source.name_of(kIndex)));
    std::set<std::string> used;
    for (const auto& [tensor, shard] : index.shard_of) used.insert(shard);
    ML_ASSIGN_OR_RETURN(std::vector<SafetensorsFile> files, open_shards(source, index));
    ML_RETURN_IF_ERROR(check_strays(source, used));
    std::uint64_t bytes = 0;
    for (const SafetensorsFile& file : files) {
      for (const TensorView& tensor : file.tensors()) bytes += tensor.bytes;
    }
    if (index.total_size && *index.total_size != bytes) {
      notes.push_back(source.name_of(kIndex) + ": metadata.total_size is " +
                      std::to_string(*index.total_size) + ", the tensors hold " +
                      std::to_string(bytes) + " bytes");
    }
    return files;
  }
  if (source.has(kSingle)) {
    ML_RETURN_IF_ERROR(check_strays(source, {kSingle}));
    std::vector<SafetensorsFile> files;
    ML_ASSIGN_OR_RETURN(SafetensorsFile file, source.tensors(kSingle));
    files.push_back(std::move(file));
    return files;
  }
  ML_ASSIGN_OR_RETURN(const std::vector<std::string> names, source.list());
  const bool shards = std::any_of(names.begin(), names.end(), looks_like_shard);
  return Status(Code::kNotFound, folder,
                shards ? std::string("holds shards but no ") + kIndex
                       : std::string("holds neither ") + kSingle + " nor " + kIndex);
}

Status check_folder(const std::string& folder) {
  if (folder.find('\0') != std::string::npos)
    return {Code::kInvalidArgument, folder, "a path with a NUL byte"};
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (!std::filesystem::exists(status)) return {Code::kNotFound, folder, "no such model folder"};
  if (!std::filesystem::is_directory(status))
    return {Code::kInvalidFile, folder, "is a file, expected a model folder"};
  return ok_status();
}

}  // namespace

struct Checkpoint::State {
  std::string path;
  std::string config_text, config_name;
  nlohmann::json config;
  std::vector<SafetensorsFile> files;
  std::vector<TensorView> tensors;
  std::size_t tensor_bytes = 0, file_bytes = 0;
  std::vector<std::string> notes;

  Status load(const ModelSource& source);
};

void Checkpoint::Delete::operator()(State* state) const { delete state; }

Status Checkpoint::State::load(const ModelSource& source) {
  if (!source.has("config.json")) return {Code::kNotFound, path, "holds no config.json"};
  config_name = source.name_of("config.json");
  ML_ASSIGN_OR_RETURN(config_text, source.text("config.json", kMaxConfigBytes));
  ML_ASSIGN_OR_RETURN(config, parse_json(config_text, config_name));
  if (!config.is_object()) return {Code::kInvalidFile, config_name, "is no JSON object"};
  ML_ASSIGN_OR_RETURN(files, open_files(source, path, notes));
  std::size_t copied = 0;
  for (const SafetensorsFile& file : files) {
    const auto layout = file.metadata().find(kLayoutKey);
    if (layout != file.metadata().end() && layout->second != "plain") {
      return {Code::kUnsupported, file.path(),
              std::string("__metadata__ ") + kLayoutKey + " is " + quote_name(layout->second) +
                  ", a checkpoint's tensors are 'plain'"};
    }
    file_bytes += file.file_bytes();
    copied += file.copied_bytes();
    for (const TensorView& tensor : file.tensors()) {
      tensor_bytes += tensor.bytes;
      tensors.push_back(tensor);
    }
  }
  if (copied > 0) {
    notes.push_back(path + ": " + std::to_string(copied) +
                    " bytes of unaligned tensors were copied (header without padding)");
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return ok_status();
}

Result<Checkpoint> Checkpoint::open(const std::string& folder, const MapOptions& options) {
  ML_RETURN_IF_ERROR(check_folder(folder));
  Checkpoint checkpoint;
  checkpoint.state_.reset(new State);
  checkpoint.state_->path = folder;
  ML_RETURN_IF_ERROR(checkpoint.state_->load(*folder_source(folder, options)));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::from_memory(const std::string& name,
                                           std::span<const MemoryFile> files) {
  Checkpoint checkpoint;
  checkpoint.state_.reset(new State);
  checkpoint.state_->path = name;
  ML_RETURN_IF_ERROR(checkpoint.state_->load(*memory_source(name, files)));
  return checkpoint;
}

const std::string& Checkpoint::path() const { return state_->path; }

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto at = std::lower_bound(
      state_->tensors.begin(), state_->tensors.end(), name,
      [](const TensorView& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return at != state_->tensors.end() && at->name == name ? &*at : nullptr;
}

Result<TensorView> Checkpoint::require(std::string_view name) const {
  const TensorView* found = find(name);
  if (found != nullptr) return *found;
  return Status(Code::kNotFound, state_->path, "holds no tensor " + quote_name(name));
}

const std::vector<TensorView>& Checkpoint::tensors() const { return state_->tensors; }
const std::string& Checkpoint::config_text() const { return state_->config_text; }
const nlohmann::json& Checkpoint::config() const { return state_->config; }
const std::string& Checkpoint::config_name() const { return state_->config_name; }
const std::vector<SafetensorsFile>& Checkpoint::files() const { return state_->files; }
std::size_t Checkpoint::tensor_bytes() const { return state_->tensor_bytes; }
std::size_t Checkpoint::file_bytes() const { return state_->file_bytes; }
const std::vector<std::string>& Checkpoint::notes() const { return state_->notes; }

Status Checkpoint::verify_unchanged() const {
  for (const SafetensorsFile& file : state_->files) ML_RETURN_IF_ERROR(file.verify_unchanged());
  return ok_status();
}

Status Checkpoint::touch_all(const ReadProgressCallback& progress) const {
  std::size_t before = 0, total = 0;
  for (const SafetensorsFile& file : state_->files) total += file.mapping().size();
  const auto start = std::chrono::steady_clock::now();
  for (const SafetensorsFile& file : state_->files) {
    ML_RETURN_IF_ERROR(file.mapping().touch_all([&](const ReadProgress& part) {
      if (!progress) return;
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      const std::size_t done = before + part.bytes_done;
      progress({done, total, static_cast<double>(done) / std::max(spent.count(), 1e-9)});
    }));
    before += file.mapping().size();
  }
  return ok_status();
}

}  // namespace monolayer

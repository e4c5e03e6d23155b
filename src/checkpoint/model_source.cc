#include "checkpoint/model_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

class FolderSource : public ModelSource {
 public:
  FolderSource(std::string folder, const MapOptions& options)
      : folder_(std::move(folder)), options_(options) {}
  std::string name_of(const std::string& file) const override {
    return (std::filesystem::path(folder_) / file).string();
  }
  bool has(const std::string& file) const override {
    // A dangling link counts as present: opening it names the file.
    std::error_code error;
    const auto status = std::filesystem::symlink_status(name_of(file), error);
    return !error && std::filesystem::exists(status);
  }
  Result<std::string> text(const std::string& file, std::size_t max_bytes) const override {
    return read_text_file(name_of(file), max_bytes);
  }
  Result<SafetensorsFile> tensors(const std::string& file) const override {
    return SafetensorsFile::open(name_of(file), options_);
  }
  Result<std::vector<std::string>> list() const override {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end;
         at.increment(error)) {
      names.push_back(at->path().filename().string());
    }
    if (error) return Status(Code::kIoError, folder_, "cannot list the folder: " + error.message());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string folder_;
  MapOptions options_;
};

class MemorySource : public ModelSource {
 public:
  MemorySource(std::string name, std::span<const MemoryFile> files)
      : name_(std::move(name)), files_(files) {}
  std::string name_of(const std::string& file) const override { return name_ + "/" + file; }
  bool has(const std::string& file) const override { return get(file) != nullptr; }
  Result<std::string> text(const std::string& file, std::size_t max_bytes) const override {
    const MemoryFile* found = get(file);
    if (found == nullptr) return Status(Code::kNotFound, name_of(file), "no such file");
    if (found->bytes.size() > max_bytes)
      return Status(Code::kInvalidFile, name_of(file),
                    "holds more than " + std::to_string(max_bytes) + " bytes");
    return std::string(reinterpret_cast<const char*>(found->bytes.data()), found->bytes.size());
  }
  Result<SafetensorsFile> tensors(const std::string& file) const override {
    const MemoryFile* found = get(file);
    if (found == nullptr) return Status(Code::kNotFound, name_of(file), "no such file");
    return SafetensorsFile::from_memory(name_of(file), found->bytes);
  }
  Result<std::vector<std::string>> list() const override {
    std::vector<std::string> names;
    for (const MemoryFile& file : files_) names.push_back(file.name);
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  const MemoryFile* get(const std::string& file) const {
    for (const MemoryFile& candidate : files_) {
      if (candidate.name == file) return &candidate;
    }
    return nullptr;
  }
  std::string name_;
  std::span<const MemoryFile> files_;
};

}  // namespace

std::unique_ptr<ModelSource> folder_source(const std::string& folder, const MapOptions& options) {
  return std::make_unique<FolderSource>(folder, options);
}

std::unique_ptr<ModelSource> memory_source(const std::string& name,
                                           std::span<const MemoryFile> files) {
  return std::make_unique<MemorySource>(name, files);
}

}  // namespace monolayer

// A file written under a temporary name and renamed when complete. Internal to this room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/status.h"

namespace monolayer {

class OutputFile {
 public:
  // Creates <path>.partial-<process id>-<counter>.
  static Result<OutputFile> create(const std::string& path);

  OutputFile() = default;
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();  // removes the temporary file unless it was renamed

  // kResourceExhausted, with the bytes wanted and free, when the disk cannot hold them. File
  // systems that cannot reserve are not an error.
  Status reserve(std::uint64_t bytes);
  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  Status sync();
  Status rename();  // to path(), and syncs the folder

  const std::string& path() const { return path_; }

 private:
  Status fail(const char* what, int error) const;

  int fd_ = -1;
  std::string path_, temporary_;
};

}  // namespace monolayer

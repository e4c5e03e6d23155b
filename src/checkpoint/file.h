// An open regular file and what the kernel says about it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace monolayer {

// "No such file or directory" and the like, as a Status naming `path`.
Status errno_status(const std::string& path, std::string_view what, int error);

class OpenFile {
 public:
  // Read-only; follows symbolic links. Folders, pipes and devices are refused (kInvalidFile).
  static Result<OpenFile> open_regular(const std::string& path);

  OpenFile() = default;
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile();

  int fd() const { return fd_; }
  std::size_t size() const { return size_; }  // when opened
  // kIoError when size or modification time differ from those at open.
  Status verify_unchanged(const std::string& path) const;

 private:
  int fd_ = -1;
  std::size_t size_ = 0;
  std::int64_t mtime_s_ = 0, mtime_ns_ = 0;
};

}  // namespace monolayer

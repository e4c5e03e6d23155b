#include "checkpoint/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace monolayer {

Status errno_status(const std::string& path, std::string_view what, int error) {
  Code code = Code::kIoError;
  if (error == ENOENT || error == ENOTDIR) code = Code::kNotFound;
  if (error == ENOMEM || error == ENOSPC || error == EDQUOT || error == EFBIG)
    code = Code::kResourceExhausted;
  return {code, path, std::string(what) + ": " + std::generic_category().message(error)};
}

Result<OpenFile> OpenFile::open_regular(const std::string& path) {
  if (path.find('\0') != std::string::npos)
    return Status(Code::kInvalidArgument, path, "a path with a NUL byte");
  OpenFile file;
  // O_NONBLOCK: opening a pipe without a writer must not hang.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return errno_status(path, "cannot open", errno);
  struct stat info = {};
  if (::fstat(file.fd_, &info) != 0) return errno_status(path, "cannot stat", errno);
  if (S_ISDIR(info.st_mode)) return Status(Code::kInvalidFile, path, "is a folder, not a file");
  if (!S_ISREG(info.st_mode)) return Status(Code::kInvalidFile, path, "is not a regular file");
  file.size_ = static_cast<std::size_t>(info.st_size);
  file.mtime_s_ = info.st_mtim.tv_sec;
  file.mtime_ns_ = info.st_mtim.tv_nsec;
  return file;
}

OpenFile::OpenFile(OpenFile&& other) noexcept { *this = std::move(other); }

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  size_ = other.size_;
  mtime_s_ = other.mtime_s_;
  mtime_ns_ = other.mtime_ns_;
  return *this;
}

OpenFile::~OpenFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status OpenFile::verify_unchanged(const std::string& path) const {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) return errno_status(path, "cannot stat", errno);
  if (static_cast<std::size_t>(info.st_size) != size_) {
    return {Code::kIoError, path,
            "changed while in use: " + std::to_string(size_) + " bytes when opened, " +
                std::to_string(info.st_size) + " now"};
  }
  if (info.st_mtim.tv_sec != mtime_s_ || info.st_mtim.tv_nsec != mtime_ns_)
    return {Code::kIoError, path, "was written to while in use"};
  return ok_status();
}

}  // namespace monolayer

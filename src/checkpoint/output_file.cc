#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "checkpoint/file.h"

namespace monolayer {

Result<OutputFile> OutputFile::create(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  if (path.find('\0') != std::string::npos)
    return Status(Code::kInvalidArgument, path, "a path with a NUL byte");
  OutputFile file;
  file.path_ = path;
  // The finished file takes the place of what is there: of a link's target, and never of a device,
  // a pipe or a folder.
  std::error_code error;
  if (std::filesystem::is_symlink(path, error)) {
    file.path_ = std::filesystem::weakly_canonical(path, error).string();
    if (error) return Status(Code::kIoError, path, "cannot follow the link: " + error.message());
  }
  const auto kind = std::filesystem::status(file.path_, error).type();
  if (kind != std::filesystem::file_type::not_found &&
      kind != std::filesystem::file_type::regular && kind != std::filesystem::file_type::none)
    return Status(Code::kInvalidArgument, path, "is there already and is not a regular file");
  file.temporary_ =
      file.path_ + ".partial-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  file.fd_ = ::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file.fd_ < 0) return errno_status(path, "cannot create", errno);
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept { *this = std::move(other); }

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  return *this;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status OutputFile::fail(const char* what, int error) const {
  return errno_status(path_, what, error);
}

Status OutputFile::reserve(std::uint64_t bytes) {
  if (bytes == 0 || ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0) return ok_status();
  const int error = errno;
  if (error == EOPNOTSUPP || error == ENOSYS || error == EINTR) return ok_status();
  struct statvfs disk = {};
  if (error == ENOSPC && ::fstatvfs(fd_, &disk) == 0) {
    return {Code::kResourceExhausted, path_,
            "needs " + std::to_string(bytes) + " bytes, the disk has " +
                std::to_string(std::uint64_t{disk.f_bavail} * disk.f_frsize) + " free"};
  }
  return fail(("cannot reserve " + std::to_string(bytes) + " bytes").c_str(), error);
}

Status OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail("cannot write", errno);
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return ok_status();
}

Status OutputFile::sync() {
  if (::fsync(fd_) != 0) return fail("cannot sync", errno);
  const int closed = ::close(std::exchange(fd_, -1));
  return closed == 0 ? ok_status() : fail("cannot close", errno);
}

Status OutputFile::rename() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return fail("cannot rename", errno);
  temporary_.clear();
  // The new name itself must survive a crash; a folder that cannot be synced is no failure.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
  return ok_status();
}

}  // namespace monolayer

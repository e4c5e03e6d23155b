#include "checkpoint/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "checkpoint/read_guard.h"

namespace monolayer {

struct MappedFile::State {
  std::string path;
  OpenFile file;
  void* begin = nullptr;  // nullptr: nothing mapped (an empty file)
  internal::MappingRecord* record = nullptr;
};

void MappedFile::Unmap::operator()(State* state) const {
  if (state->begin != nullptr) {
    internal::unregister_mapping(state->record);
    ::munmap(state->begin, state->file.size());
  }
  delete state;
}

// From here on a file is asked to come in huge pages: a step that reads all of it then waits for
// fewer address translations. Granted where the file system keeps large folios (ext4 since Linux
// 6.16) and the file was read into the page cache, not where it was just written.
constexpr std::size_t kLargeFile = std::size_t{256} << 20;

Result<MappedFile> MappedFile::open(const std::string& path, const MapOptions& options) {
  ML_ASSIGN_OR_RETURN(OpenFile file, OpenFile::open_regular(path));
  MappedFile mapped;
  mapped.state_.reset(new State);
  State& state = *mapped.state_;
  state.path = path;
  state.file = std::move(file);
  const std::size_t size = state.file.size();
  if (size == 0) return mapped;
  void* begin = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, state.file.fd(), 0);
  if (begin == MAP_FAILED)
    return errno_status(path, "cannot map " + std::to_string(size) + " bytes", errno);
  state.begin = begin;
  state.record = internal::register_mapping(begin, size, state.path.c_str(), state.file.fd());
  // Hints: a kernel or file system that refuses them changes nothing but speed.
  if (options.sequential) ::madvise(begin, size, MADV_SEQUENTIAL);
  if (options.huge_pages || size >= kLargeFile) ::madvise(begin, size, MADV_HUGEPAGE);
  return mapped;
}

std::span<const std::byte> MappedFile::bytes() const {
  if (state_ == nullptr || state_->begin == nullptr) return {};
  return {static_cast<const std::byte*>(state_->begin), state_->file.size()};
}

const std::string& MappedFile::path() const {
  static const std::string none;
  return state_ == nullptr ? none : state_->path;
}

Status MappedFile::verify_unchanged() const {
  return state_ == nullptr ? ok_status() : state_->file.verify_unchanged(state_->path);
}

Status MappedFile::touch(std::size_t offset, std::size_t count) const {
  const std::span<const std::byte> all = bytes();
  if (offset >= all.size()) return ok_status();
  count = std::min(count, all.size() - offset);
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = offset / page * page;
#ifdef MADV_POPULATE_READ
  // One call instead of a fault a page; older kernels answer EINVAL and take the loop.
  auto* start = const_cast<std::byte*>(all.data()) + first;
  if (::madvise(start, offset + count - first, MADV_POPULATE_READ) == 0) return ok_status();
#endif
  return guard_reads([&] {
    for (std::size_t at = first; at < offset + count; at += page) {
      static_cast<void>(*static_cast<const volatile std::byte*>(all.data() + at));
    }
  });
}

Status MappedFile::touch_all(const ReadProgressCallback& progress) const {
  constexpr std::size_t kPiece = std::size_t{32} << 20;
  const auto start = std::chrono::steady_clock::now();
  const std::size_t total = size();
  for (std::size_t done = 0; done < total;) {
    const std::size_t count = std::min(kPiece, total - done);
    ML_RETURN_IF_ERROR(touch(done, count));
    done += count;
    if (progress) {
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      progress({done, total, static_cast<double>(done) / std::max(spent.count(), 1e-9)});
    }
  }
  return verify_unchanged();
}

}  // namespace monolayer

// A file mapped read-only, with the size it had when it was opened.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "checkpoint/file.h"
#include "core/status.h"

namespace monolayer {

struct MapOptions {
  bool sequential = false;  // tell the kernel to read far ahead
  bool huge_pages = false;  // ask for huge pages; a hint most file systems ignore
};

struct ReadProgress {
  std::size_t bytes_done = 0;
  std::size_t bytes_total = 0;
  double bytes_per_second = 0;  // mean since the start
};
using ReadProgressCallback = std::function<void(const ReadProgress&)>;

class MappedFile {
 public:
  // An empty file gives an empty span. Errors as OpenFile::open_regular, and mmap's own.
  static Result<MappedFile> open(const std::string& path, const MapOptions& options = {});

  MappedFile() = default;
  MappedFile(MappedFile&&) noexcept = default;
  MappedFile& operator=(MappedFile&&) noexcept = default;

  std::span<const std::byte> bytes() const;
  std::size_t size() const { return bytes().size(); }
  const std::string& path() const;

  // kIoError when the file's size or modification time changed since it was opened. One fstat:
  // cheap enough for every decode step. The only defence against bytes lost inside the last page.
  Status verify_unchanged() const;

  // Brings bytes [offset, offset + count) into memory, clamped to the file. kIoError, never a
  // signal, when a page cannot be read.
  Status touch(std::size_t offset, std::size_t count) const;
  // touch() over the whole file in pieces of some MB, then verify_unchanged().
  Status touch_all(const ReadProgressCallback& progress = {}) const;

 private:
  struct State;
  struct Unmap {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Unmap> state_;
};

}  // namespace monolayer

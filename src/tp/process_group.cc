#include "tp/process_group.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "tp/control.h"
#include "tp/watcher.h"

namespace monolayer::tp {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint64_t round_up(std::uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

Status system_error(const char* what, std::uint64_t bytes) {
  const int error = errno;
  const bool full = error == ENOMEM || error == ENOSPC || error == EFBIG;
  return {full ? Code::kResourceExhausted : Code::kIoError, what,
          std::to_string(bytes) + " bytes: " + std::strerror(error)};
}

Result<std::byte*> map_shared(int memory, std::uint64_t offset, std::size_t bytes) {
  void* mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return system_error("map of shared memory", bytes);
  return static_cast<std::byte*>(mapped);
}

// Lets go of a descriptor and of the control block's mapping, whoever comes first.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (control != nullptr) munmap(control, sizeof(ControlBlock));
    if (fd >= 0) ::close(fd);
  }
  void forget() {
    control = nullptr;
    fd = -1;
  }
  int fd = -1;
  std::byte* control = nullptr;
};

// Regions follow the control block in the file, each rank's part after the other's. All ranks
// allocate in the same order, so each computes the same offsets. Offsets are never used twice.
class ProcessGroup final : public Group {
 public:
  ProcessGroup(std::unique_ptr<Memory> memory, int rank, int size)
      : Group(reinterpret_cast<ControlBlock*>(memory->control), rank, size),
        memory_(std::move(memory)) {}

  ~ProcessGroup() override {
    watcher_.stop();
    if (!closed()) memory_->forget();  // whatever still uses it stays valid
  }

  Status start(const Deadline& deadline) {
    Member& self = control_->members[rank()];
    self.pid.store(getpid(), std::memory_order_release);
    ML_RETURN_IF_ERROR(barrier(deadline));  // all have registered
    const Agreement agreement = agree(watcher_.start(control_, rank(), size()), deadline);
    return agreement.status;
  }

  // Lets go without a word to the peers: start() failed.
  void abandon() { (void)close(Deadline(Deadline::Clock::duration::zero())); }

 private:
  std::uint64_t part() const { return static_cast<std::uint64_t>(rank()); }

  Status allocate_own(std::size_t bytes, SymmetricRegion& region, Handle& handle) override {
    const std::uint64_t first = next_offset_;
    // Reserving pages beyond the machine's memory would wake the kernel's killer, not fail.
    const auto physical = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * kPage;
    if (bytes > physical / static_cast<std::uint64_t>(size())) {
      return {Code::kResourceExhausted, "symmetric region",
              std::to_string(bytes) + " bytes of each of " + std::to_string(size()) +
                  " ranks; this machine has " + std::to_string(physical)};
    }
    const std::uint64_t rounded = round_up(bytes);
    next_offset_ += rounded * static_cast<std::uint64_t>(size());
    const std::uint64_t offset = first + rounded * part();
    // Reserved now, so that a full machine is an error here and not a fault later.
    if (fallocate(memory_->fd, 0, static_cast<off_t>(offset), static_cast<off_t>(rounded)) != 0) {
      return system_error("symmetric region", rounded);
    }
    auto mapped = map_shared(memory_->fd, offset, rounded);
    if (!mapped.ok()) {
      punch(offset, rounded);
      return mapped.status();
    }
    region.base[static_cast<std::size_t>(rank())] = *mapped;
    std::memcpy(handle.data(), &offset, sizeof offset);
    offsets_.push_back({region.id, offset});
    return {};
  }

  Status map_peers(std::span<const Handle> handles, SymmetricRegion& region) override {
    for (std::size_t r = 0; r < handles.size(); ++r) {
      if (static_cast<int>(r) == rank()) continue;
      std::uint64_t offset = 0;
      std::memcpy(&offset, handles[r].data(), sizeof offset);
      ML_ASSIGN_OR_RETURN(region.base[r], map_shared(memory_->fd, offset, round_up(region.bytes)));
    }
    return {};
  }

  void unmap_peers(SymmetricRegion& region) override {
    for (std::size_t r = 0; r < region.base.size(); ++r) {
      if (static_cast<int>(r) == rank() || region.base[r] == nullptr) continue;
      munmap(region.base[r], round_up(region.bytes));
      region.base[r] = nullptr;
    }
  }

  void free_own(SymmetricRegion& region) override {
    const std::uint64_t rounded = round_up(region.bytes);
    munmap(region.base[static_cast<std::size_t>(rank())], rounded);
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      if (offsets_[i].region != region.id) continue;
      punch(offsets_[i].offset, rounded);
      offsets_.erase(offsets_.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    region = {};
  }

  // Gives pages back to the system while the file lives on.
  void punch(std::uint64_t offset, std::uint64_t bytes) {
    (void)fallocate(memory_->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }

  void leave(bool cleanly) override {
    // Peers may go on to exit; from here on this process's end is no failure either.
    if (cleanly) control_->members[rank()].left.store(1, std::memory_order_release);
    watcher_.stop();
  }

  struct Offset {
    std::uint64_t region;
    std::uint64_t offset;
  };
  std::unique_ptr<Memory> memory_;
  Watcher watcher_;
  std::uint64_t next_offset_ = round_up(sizeof(ControlBlock));
  std::vector<Offset> offsets_;
};

}  // namespace

Result<int> create_group_memory() {
  // The name is seen in /proc only: it says whose it is.
  const std::string name = "monolayer-tp-" + std::to_string(getpid());
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd < 0) return system_error("memfd_create", 0);
  if (ftruncate(fd, static_cast<off_t>(round_up(sizeof(ControlBlock)))) != 0) {
    Status status = system_error("shared memory of the group", sizeof(ControlBlock));
    ::close(fd);
    return status;
  }
  return fd;
}

Result<std::unique_ptr<Group>> join_process_group(int memory, int rank, int size,
                                                  const Deadline& deadline) {
  if (size != 1 && size != 2 && size != 4 && size != 8) {
    return Status{Code::kInvalidArgument, "tensor-parallel size",
                  std::to_string(size) + " is not 1, 2, 4 or 8"};
  }
  if (rank < 0 || rank >= size) {
    return Status{Code::kInvalidArgument, "rank",
                  std::to_string(rank) + " is not in 0 to " + std::to_string(size - 1)};
  }
  struct stat info {};
  if (fstat(memory, &info) != 0 ||
      info.st_size < static_cast<off_t>(round_up(sizeof(ControlBlock)))) {
    return Status{Code::kInvalidArgument, "group memory", "not a descriptor of a group's memory"};
  }
  auto held = std::make_unique<Memory>();
  held->fd = fcntl(memory, F_DUPFD_CLOEXEC, 0);
  if (held->fd < 0) return system_error("group memory", 0);
  ML_ASSIGN_OR_RETURN(held->control, map_shared(held->fd, 0, sizeof(ControlBlock)));
  auto group = std::make_unique<ProcessGroup>(std::move(held), rank, size);
  const Status started = group->start(deadline);
  if (!started.ok()) {
    group->fail(started);
    group->abandon();
    return started;
  }
  return std::unique_ptr<Group>(std::move(group));
}

}  // namespace monolayer::tp

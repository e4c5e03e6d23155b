// Ranks as threads of one process: memory is shared anyway, only its lifetime needs care.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>

#include "tp/control.h"
#include "tp/group.h"

namespace monolayer::tp {

namespace {

Result<std::byte*> map_zeroed(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status{Code::kResourceExhausted, "symmetric region",
                  std::to_string(bytes) + " bytes: " + std::strerror(errno)};
  }
  return static_cast<std::byte*>(memory);
}

// Lives until the last rank's group object is gone.
class Shared {
 public:
  explicit Shared(std::byte* control) : control_(control) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() {
    munmap(control_, sizeof(ControlBlock));
    for (const Block& block : blocks_) munmap(block.memory, block.bytes);
  }

  ControlBlock* control() const { return reinterpret_cast<ControlBlock*>(control_); }

  Result<std::byte*> allocate(std::size_t bytes) {
    ML_ASSIGN_OR_RETURN(std::byte * memory, map_zeroed(bytes));
    const std::lock_guard lock(mutex_);
    blocks_.push_back({memory, bytes});
    return memory;
  }

  void free(std::byte* memory) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].memory != memory) continue;
      munmap(memory, blocks_[i].bytes);
      blocks_[i] = blocks_.back();
      blocks_.pop_back();
      return;
    }
  }

 private:
  struct Block {
    std::byte* memory;
    std::size_t bytes;
  };
  std::byte* control_;
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

// Keeps what a rank left behind without closing: peers may still use it.
void keep_for_ever(std::shared_ptr<Shared> shared) {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::shared_ptr<Shared>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(shared));
}

class ThreadGroup final : public Group {
 public:
  ThreadGroup(std::shared_ptr<Shared> shared, int rank, int size)
      : Group(shared->control(), rank, size), shared_(std::move(shared)) {}
  ~ThreadGroup() override {
    if (!closed() && size() > 1) keep_for_ever(std::move(shared_));
  }

 private:
  Status allocate_own(std::size_t bytes, SymmetricRegion& region, Handle& handle) override {
    ML_ASSIGN_OR_RETURN(std::byte * memory, shared_->allocate(bytes));
    region.base[static_cast<std::size_t>(rank())] = memory;
    std::memcpy(handle.data(), &memory, sizeof memory);
    return {};
  }

  Status map_peers(std::span<const Handle> handles, SymmetricRegion& region) override {
    for (std::size_t r = 0; r < handles.size(); ++r) {
      std::memcpy(&region.base[r], handles[r].data(), sizeof(std::byte*));
    }
    return {};
  }

  void unmap_peers(SymmetricRegion& region) override {
    std::byte* own = region.base[static_cast<std::size_t>(rank())];
    region.base = {};
    region.base[static_cast<std::size_t>(rank())] = own;
  }

  void free_own(SymmetricRegion& region) override {
    shared_->free(region.base[static_cast<std::size_t>(rank())]);
    region = {};
  }

  void leave(bool /*cleanly*/) override {}

  std::shared_ptr<Shared> shared_;
};

}  // namespace

Result<std::vector<std::unique_ptr<Group>>> make_thread_group(int ranks) {
  if (ranks != 1 && ranks != 2 && ranks != 4 && ranks != 8) {
    return Status{Code::kInvalidArgument, "tensor-parallel size",
                  std::to_string(ranks) + " is not 1, 2, 4 or 8"};
  }
  ML_ASSIGN_OR_RETURN(std::byte * control, map_zeroed(sizeof(ControlBlock)));
  new (control) ControlBlock;
  const auto shared = std::make_shared<Shared>(control);
  std::vector<std::unique_ptr<Group>> group;
  group.reserve(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) group.push_back(std::make_unique<ThreadGroup>(shared, r, ranks));
  return group;
}

}  // namespace monolayer::tp

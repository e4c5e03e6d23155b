// What the ranks of a group share: valid when its bytes are zero, and free of pointers, so that it
// may lie in memory mapped by several processes at different addresses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/deadline.h"
#include "tp/group.h"

namespace monolayer::tp {

// Bytes a rank passes per exchange; longer messages go in several.
inline constexpr std::size_t kSlotBytes = 65536;

struct alignas(64) Arrival {
  std::atomic<std::uint64_t> epoch;  // calls this rank has entered
};

// What call a rank makes, to be compared with its peers'.
struct CallHeader {
  std::uint32_t kind;
  std::uint32_t root;
  std::uint64_t bytes;
  bool operator==(const CallHeader&) const = default;
};

// Of a process: who it is and whether others may still count on it.
struct alignas(64) Member {
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> left;  // 1: it closed the group, its end is no failure
};

// Headers and slots are doubled: a rank writes copy (e mod 2) for its call e after it has finished
// call e - 1, which every peer entered after it had read copy (e mod 2) for call e - 2.
struct ControlBlock {
  Poison poison;
  Arrival arrivals[kMaxRanks];
  Member members[kMaxRanks];
  CallHeader headers[2][kMaxRanks];
  alignas(4096) std::byte slots[2][kMaxRanks][kSlotBytes];
};

}  // namespace monolayer::tp

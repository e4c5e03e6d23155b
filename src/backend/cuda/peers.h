// The regions of all ranks of a group (docs/protocol.md), as one process sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device_memory.h"
#include "backend/cuda/params.h"
#include "core/status.h"
#include "tp/group.h"

namespace monolayer::cuda {

class Peers {
 public:
  // `ranks` ranks of one process on the current device.
  static Result<std::unique_ptr<Peers>> on_one_device(int ranks, int hidden);
  // Benches: one rank that writes what `ranks` ranks would write to it.
  static Result<std::unique_ptr<Peers>> standing_in(int ranks, int hidden);
  // Collective: one rank a device, this one on the current device. Ranks of other processes are
  // reached over CUDA IPC, those of this process by peer access. kUnsupported naming both ranks if
  // two are on one device or cannot reach each other.
  static Result<std::unique_ptr<Peers>> connect(tp::Group& group, int hidden);
  // Without close(): keeps the memory, which peers may still write to.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int ranks() const { return static_cast<int>(mailboxes_.size()); }
  // Of local rank i: the ranks of on_one_device in order, otherwise 0.
  const Mailbox& mailbox(int i) const { return mailboxes_[static_cast<std::size_t>(i)]; }
  Record* record(int i) const;

  // The record of a local rank, complete. The device is idle.
  Result<Record> read_record(int i) const;
  // Tests: as if this many steps had been, on all ranks and before the first.
  Status set_steps(std::uint64_t steps);
  // Forgets what failed. Nobody may be waiting any more, on any rank.
  Status clear_records();
  // Collective over the group, with the device idle; idempotent.
  Status close();

 private:
  Peers() = default;
  Status allocate(int ranks, int hidden);

  tp::Group* group_ = nullptr;
  int device_ = 0;
  std::vector<DeviceBuffer> own_;  // regions of local ranks
  std::vector<Mailbox> mailboxes_;
  std::vector<void*> opened_;  // regions of other processes
  bool closed_ = false;
};

// "rank 1, block 3 gave up waiting in layer 5, stage 9 (words, index 7): expected 12, saw 11".
std::string describe_record(const Record& record);

}  // namespace monolayer::cuda

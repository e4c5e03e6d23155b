// Notices the end of peers' processes.
#pragma once

#include <array>
#include <thread>

#include "core/status.h"
#include "tp/control.h"

namespace monolayer::tp {

// A thread that sleeps until a peer's process ends or stop() is called. A peer that ends without
// having left poisons the group.
class Watcher {
 public:
  Watcher() = default;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  ~Watcher() { stop(); }

  // When all members have registered. kIoError if the thread or its descriptors cannot be had; a
  // kernel without pidfds is no error (then only deadlines find dead peers).
  Status start(ControlBlock* control, int rank, int size);
  void stop();

 private:
  void run();

  ControlBlock* control_ = nullptr;
  int size_ = 0;
  int wake_ = -1;
  std::array<int, kMaxRanks> peers_{};
  std::thread thread_;
};

}  // namespace monolayer::tp

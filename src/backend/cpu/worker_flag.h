// How a worker of a mono team tells the others how far it is: a counter they wait on, spinning
// first and then asleep in the kernel, woken by the change itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/deadline.h"
#include "mono/protocol.h"

namespace monolayer::cpu {

// Counts without end: values are compared by their distance, so a wrap changes nothing.
class alignas(64) WorkerFlag {
 public:
  // By the flag's only writer. Everything it wrote before is visible after a wait for `value`.
  void publish(std::uint32_t value) {
    word_.store(value, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
  }
  bool reached(std::uint32_t value) const {
    return static_cast<std::int32_t>(word_.load(std::memory_order_acquire) - value) >= 0;
  }
  // False: given up, policy.poison (which may not be null) is raised.
  [[nodiscard]] bool wait(std::uint32_t value, std::chrono::nanoseconds spin,
                          const WaitPolicy& policy, const mono::WaitPlace& place,
                          std::int64_t index);

 private:
  void wake();

  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace monolayer::cpu

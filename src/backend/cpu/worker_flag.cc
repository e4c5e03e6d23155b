#include "backend/cpu/worker_flag.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace monolayer::cpu {
namespace {

// How often a sleeper looks whether the group failed.
constexpr std::chrono::milliseconds kSlice{5};

static_assert(sizeof(std::atomic<std::uint32_t>) == 4);

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value,
           const timespec* timeout) {
  return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, timeout, nullptr, 0);
}

}  // namespace

void WorkerFlag::wake() { futex(&word_, FUTEX_WAKE, 0x7fffffff, nullptr); }

bool WorkerFlag::wait(std::uint32_t value, std::chrono::nanoseconds spin, const WaitPolicy& policy,
                      const mono::WaitPlace& place, std::int64_t index) {
  const auto began = std::chrono::steady_clock::now();
  for (auto now = began; now - began < spin; now = std::chrono::steady_clock::now()) {
    for (int i = 0; i < 64; ++i) {
      if (reached(value)) return true;
      Waiter::relax();
    }
  }
  const timespec slice{0, std::chrono::nanoseconds(kSlice).count()};
  bool late = false;
  for (;;) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = word_.load(std::memory_order_seq_cst);
    if (static_cast<std::int32_t>(seen - value) < 0) futex(&word_, FUTEX_WAIT, seen, &slice);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    if (reached(value)) return true;
    // A process that was stopped for longer than the timeout looks once more.
    if (late || policy.poison->raised()) {
      (void)Waiter(policy).give_up(place.record(index, value, word_.load()));
      return false;
    }
    late = std::chrono::steady_clock::now() - began >= policy.timeout;
  }
}

}  // namespace monolayer::cpu

// Bounded waiting: the one deadline type, what a wait that failed says, and the word that ends
// every wait of a group. The types that ranks share are plain: they may lie in memory of several
// processes and are valid when their bytes are zero.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "core/status.h"

namespace monolayer {

// A point on the monotonic clock.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kDefault{10'000};

  Deadline() : Deadline(kDefault) {}
  explicit Deadline(Clock::duration from_now) : at_(Clock::now() + from_now), timeout_(from_now) {}

  bool expired() const { return Clock::now() >= at_; }
  Clock::time_point time() const { return at_; }
  Clock::duration timeout() const { return timeout_; }  // as given
  Clock::duration remaining() const {                   // not negative
    const Clock::duration left = at_ - Clock::now();
    return left > Clock::duration::zero() ? left : Clock::duration::zero();
  }

 private:
  Clock::time_point at_;
  Clock::duration timeout_;
};

// Where a wait stood when it was given up, or why nobody should wait any more. Numbers that do not
// apply are -1; texts are cut to their arrays.
struct WaitRecord {
  enum class Kind : std::uint32_t {
    kNone,
    kDeadline,   // `rank` waited `timeout_ms` for word `index` of `region`
    kPeerLost,   // the process or thread of `rank` ended while others count on it
    kDisagreed,  // the ranks do not make the same calls; `detail` says which
    kFailed,     // `rank` failed with `code`; `detail` is its message
  };
  Kind kind = Kind::kNone;
  Code code = Code::kInternal;
  std::int32_t rank = -1;
  std::int32_t layer = -1;
  std::int32_t stage = -1;
  std::int64_t index = -1;  // the word or flag of the region; of group calls: the rank waited for
  std::uint64_t expected = 0;
  std::uint64_t seen = 0;
  std::int64_t timeout_ms = -1;
  char region[32] = {};
  char detail[160] = {};

  WaitRecord& set_region(std::string_view name);
  WaitRecord& set_detail(std::string_view text);
  // One line naming all of it. kDeadline and kPeerLost: Code::kDeadlineExceeded; kDisagreed:
  // kFailedPrecondition; kFailed: `code`.
  Status to_status() const;
};
static_assert(std::is_trivially_copyable_v<WaitRecord>);

// Raised once, by whoever fails first; ends every wait of the group with the same error. Lies in
// memory that all ranks see.
class Poison {
 public:
  bool raised() const { return state_.load(std::memory_order_acquire) != kClean; }
  // False if somebody was first; then the record is theirs.
  bool raise(const WaitRecord& record);
  // The error of the one that was first, the same on every rank; ok if nobody was.
  Status status() const;
  WaitRecord record() const;

 private:
  static constexpr std::uint32_t kClean = 0, kWriting = 1, kRaised = 2;
  std::atomic<std::uint32_t> state_{kClean};
  WaitRecord record_;
};

// How to wait. `poison` may be null only where nobody else can fail.
struct WaitPolicy {
  Deadline::Clock::duration timeout = Deadline::kDefault;
  Poison* poison = nullptr;
  std::uint32_t spins = 200;  // looks before it sleeps
};

// One wait: spins, then sleeps ever longer (at most an eighth of the time waited so far), so that
// more waiters than cores still progress. It never yields: on a crowded machine that puts it behind
// every program that computes, where a sleeper is run soon after it wakes.
//
//   Waiter waiter(policy);
//   while (!ready()) {
//     if (!waiter.again()) return waiter.give_up(record);
//   }
class Waiter {
 public:
  explicit Waiter(const WaitPolicy& policy) : policy_(policy) {}

  // After a look in vain. False: do not look again, the group is poisoned or time is up (there was
  // a look after it was).
  bool again() {
    if (looks_ < policy_.spins) {
      ++looks_;
      relax();
      return true;
    }
    return again_slowly();
  }

  // Poisons the group with `record` (its kind is filled in, and its timeout unless it has one)
  // unless it is poisoned. Returns the group's error.
  Status give_up(WaitRecord record) const;

  Deadline::Clock::duration waited() const;  // zero while it spins

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 private:
  bool again_slowly();

  WaitPolicy policy_;
  std::uint32_t looks_ = 0;
  bool late_ = false;
  Deadline::Clock::time_point started_{};
};

}  // namespace monolayer

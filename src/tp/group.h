// A tensor-parallel group: 1, 2, 4 or 8 ranks that make the same collective calls in the same
// order.
//
// Ranks are threads of one process (make_thread_group) or processes of one host (process_group.h);
// what a rank sees is this class. One thread of a rank at a time may call a collective. Every wait
// is bounded by the call's deadline; the first failure poisons the group, and from then on every
// call on every rank returns that same error. Steady-state calls do not allocate.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"

namespace monolayer::tp {

inline constexpr int kMaxRanks = 8;
inline constexpr int kEighths = 8;  // parts every split dimension is summed in

struct ControlBlock;  // what the ranks share (control.h)

// Memory of every rank, mapped on every rank. Zeroed when allocated, 4096-byte aligned.
struct SymmetricRegion {
  std::uint64_t id = 0;                      // the same on all ranks; 0: none
  std::size_t bytes = 0;                     // of each rank
  std::array<std::byte*, kMaxRanks> base{};  // base[r]: memory of rank r, as this rank addresses it
};

// What all ranks know after they have told each other how they fare. The same on every rank.
struct Agreement {
  enum class Outcome : std::uint8_t {
    kAgreed,       // all ok and ready
    kNotReady,     // no failure, but some rank is not ready: try again later
    kUnsupported,  // every failing rank failed with Code::kUnsupported
    kFailed,       // some rank failed otherwise, or the group is poisoned
  };
  Outcome outcome = Outcome::kAgreed;
  // ok when agreed. Otherwise the code of the lowest rank that decided the outcome, and one line
  // with each such rank's message ("rank 1: ...; rank 3: ..."). kNotReady: kFailedPrecondition.
  Status status;
  std::uint32_t ranks = 0;  // bit r: rank r failed (or is not ready)
  bool ok() const { return outcome == Outcome::kAgreed; }
};

// The fixed tree: adds the roots of 1, 2, 4 or 8 subtrees. With eighths e0..e7 the total is
// ((e0+e1)+(e2+e3))+((e4+e5)+(e6+e7)) whatever the number of ranks that held them.
inline float add_roots(const float* roots, int count) {
  switch (count) {
    case 1:
      return roots[0];
    case 2:
      return roots[0] + roots[1];
    case 4:
      return (roots[0] + roots[1]) + (roots[2] + roots[3]);
    default:
      return ((roots[0] + roots[1]) + (roots[2] + roots[3])) +
             ((roots[4] + roots[5]) + (roots[6] + roots[7]));
  }
}

// out[i] = root of this rank's subtree over parts[0][i], parts[1][i], ... (8 / ranks eighths, in
// order). `out` may be parts[0].
void sum_eighths(std::span<const float* const> parts, std::span<float> out);

class Group {
 public:
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Not collective, never waits. Without close(): says so on stderr and leaks what it holds, which
  // peers may still use; the process's end frees it.
  virtual ~Group();

  int rank() const { return rank_; }
  int size() const { return size_; }
  Poison& poison() { return *poison_; }
  // ok, or the error that poisoned the group.
  Status status() const { return poison_->raised() ? poison_->status() : Status{}; }
  // Ends every wait on every rank with `why`, as said by this rank.
  void fail(const Status& why);

  // Everything a rank wrote before is visible to every rank after. fence() is the same for memory
  // of devices: the caller drains its own device first.
  Status barrier(const Deadline& deadline = Deadline());
  Status fence(const Deadline& deadline = Deadline()) { return barrier(deadline); }

  // Joins the ranks' statuses. `ready` false: this rank has no objection but must wait for
  // something. The group stays usable after any outcome, unless poisoned.
  Agreement agree(const Status& mine, bool ready, const Deadline& deadline = Deadline());
  Agreement agree(const Status& mine, const Deadline& deadline = Deadline()) {
    return agree(mine, true, deadline);
  }
  // kFailedPrecondition naming `what` and the first rank that differs from rank 0, on all ranks,
  // unless all pass the same value.
  Status agree_same(std::uint64_t value, const char* what, const Deadline& deadline = Deadline());

  // all[r * mine.size()...] = mine of rank r; sizes are the same on all ranks.
  Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                    const Deadline& deadline = Deadline());
  Status broadcast(std::span<std::byte> data, int root, const Deadline& deadline = Deadline());
  // data: root of this rank's subtree in, the total of the fixed tree out; the same bits on all.
  Status all_reduce(std::span<float> data, const Deadline& deadline = Deadline());

  // Collective: all ranks get a region or all get the same error, with nothing left allocated.
  Result<SymmetricRegion> allocate(std::size_t bytes, const Deadline& deadline = Deadline());
  // Collective: barrier, unmap peers, barrier, free own. The caller drained its device. On failure
  // the memory is kept (a peer may still use it). `region` is empty afterwards.
  Status release(SymmetricRegion& region, const Deadline& deadline = Deadline());
  // Collective, idempotent: releases what is allocated and leaves. All calls afterwards but
  // close() fail with kFailedPrecondition.
  Status close(const Deadline& deadline = Deadline());
  bool closed() const { return closed_; }

 protected:
  using Handle = std::array<std::byte, 64>;  // how peers find a rank's memory

  Group(ControlBlock* control, int rank, int size);

  // Local parts of allocate and release. map_peers fills base[] of every other rank.
  virtual Status allocate_own(std::size_t bytes, SymmetricRegion& region, Handle& handle) = 0;
  virtual Status map_peers(std::span<const Handle> handles, SymmetricRegion& region) = 0;
  virtual void unmap_peers(SymmetricRegion& region) = 0;
  virtual void free_own(SymmetricRegion& region) = 0;
  // At the end of close(); `cleanly`: after its last barrier, else the group is poisoned.
  virtual void leave(bool cleanly) = 0;

  ControlBlock* control_;

 private:
  struct Call;

  Status enter(const Call& call, const Deadline& deadline);
  Status check_usable(const char* what) const;
  std::byte* slot(int rank) const;

  Poison* poison_;
  int rank_;
  int size_;
  std::uint64_t epoch_ = 0;
  std::uint64_t next_region_ = 1;
  bool closed_ = false;
  std::vector<SymmetricRegion> regions_;  // allocated, not yet released
};

// One group per thread, in rank order; hand each to its thread. kInvalidArgument unless ranks is 1,
// 2, 4 or 8. A group of one is complete by itself and waits for nothing.
Result<std::vector<std::unique_ptr<Group>>> make_thread_group(int ranks);

}  // namespace monolayer::tp

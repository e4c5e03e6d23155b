// Runs one function on every rank of a group: on threads, or on processes that end with this one.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "core/status.h"
#include "tp/group.h"

namespace monolayer::tp {

enum class RankKind : std::uint8_t { kThreads, kProcesses };

struct LaunchOptions {
  RankKind kind = RankKind::kThreads;
  int ranks = 1;
  // Processes: once a rank has failed or been killed, how long the others may take to notice before
  // they are killed. More than the group's deadlines plus a second.
  std::chrono::milliseconds grace{12'000};
};

// Statuses in rank order. A rank that returns an error without having closed the group fails it for
// all; one that returns ok has its group closed. Exceptions become kInternal. A process that was
// killed or died: kInternal naming the signal or exit code.
//
// Processes are forked, so the caller should not have other threads that hold locks; they get
// SIGKILL when the calling thread ends, and none is left when run_ranks returns. kInvalidArgument
// or kIoError if the ranks cannot be started.
Result<std::vector<Status>> run_ranks(const LaunchOptions& options,
                                      const std::function<Status(Group&)>& rank_main);

}  // namespace monolayer::tp

// The mono executor of the CPU: a resident team that stays inside a run of layers. Workers hand
// results to each other through one growing flag each, waiting only for those whose results they
// read; ranks exchange through mailboxes.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "backend/cpu/native.h"
#include "backend/cpu/thread_team.h"
#include "backend/cpu/tiles.h"
#include "core/status.h"
#include "mono/executor.h"
#include "mono/plan.h"

namespace monolayer::cpu {

// One task of a run, for the picture of it. Seconds from the run's begin.
struct TaskTime {
  std::int32_t layer = 0;
  std::int16_t worker = 0;
  mono::Stage stage{};
  double wait_begin = 0, begin = 0, end = 0;
};

struct MonoOptions {
  const Tiles* tiles = nullptr;  // null: the best available
  std::chrono::milliseconds timeout{10'000};
  // One thread walks every task in the plan's order: the slow executor others are compared with.
  // Region memory is filled with NaN before each layer but for the stream.
  bool serial = false;
  int serial_workers = 1;  // workers of the plan it walks
  bool record = false;     // keep a TaskTime per task of the last run
  // Called before each step of a worker: for tests that delay it.
  void (*before_step)(void* context, std::int64_t layer, mono::Stage stage, int worker) = nullptr;
  void* context = nullptr;
};

class MonoExecutor : public mono::Executor {
 public:
  // Collective if there is a group. Borrows `team` (unused by the serial one) and what `config`
  // points to; `owned` is kept as long as the executor, to be `team` where nobody else keeps it.
  static Result<std::unique_ptr<MonoExecutor>> create(const mono::ExecutorConfig& config,
                                                      ThreadTeam* team, const MonoOptions& options,
                                                      std::unique_ptr<ThreadTeam> owned = nullptr);

  virtual const mono::LayerPlan& plan(std::int64_t layer) const = 0;
  virtual Traffic traffic() const = 0;  // of the last run
  virtual const std::vector<TaskTime>& times() const = 0;
};

}  // namespace monolayer::cpu

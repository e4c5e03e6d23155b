// Tensor-parallel ranks as processes: this one is rank 0, the others are forked before it has
// threads and compute the steps they are sent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/cpu/cache.h"
#include "backend/cpu/native.h"
#include "backend/cpu/thread_team.h"
#include "core/deadline.h"
#include "core/status.h"
#include "dispatch/chain_policy.h"
#include "engine/model_loader.h"

namespace monolayer::engine {

struct RankProcessOptions {
  int ranks = 2;
  int threads = 0;  // of all ranks together, at least one each; 0: one per usable core
  cpu::CacheOptions cache;
  std::int64_t pages = 0;
  const cpu::Tiles* tiles = nullptr;
  std::int64_t longest_tokens = 0;  // of one sequence
  std::string path = "auto";        // as NativeRunOptions::path, which rank 0 goes by
  Deadline::Clock::duration order_timeout = Deadline::kDefault;  // for the ranks to take one
};

class RankProcesses {
 public:
  // Forks ranks 1 and up. They end when this process does, however it ends; SIGINT and SIGTERM are
  // for this one alone. Call before any thread is started. `model` must outlive the object.
  static Result<std::unique_ptr<RankProcesses>> start(const OpenModel& model,
                                                      const RankProcessOptions& options);
  virtual ~RankProcesses() = default;  // ends and reaps them

  // Rank 0's end, once: joins the group and loads its share. Steps of the result run on all ranks;
  // their page ids lie in pools of their own. Borrows `weights` and `policy`.
  virtual Result<std::unique_ptr<cpu::Native>> join(const m3::ModelWeights& weights,
                                                    dispatch::ChainPolicy& policy) = 0;
  virtual int size() const = 0;  // ranks
  // Any thread: ok, or the one line of a rank that is gone: why it could not load, if it said so.
  virtual Status health() const = 0;
};

}  // namespace monolayer::engine

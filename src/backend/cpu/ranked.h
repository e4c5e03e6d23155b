// Tensor parallelism inside one process: a rank per thread, each with its share of the weights, its
// own caches and its own team, behind the interface of one chain.
#pragma once

#include <memory>

#include "backend/cpu/cache.h"
#include "backend/cpu/native.h"

namespace monolayer::cpu {

struct RankedOptions {
  int ranks = 1;
  int threads = 0;  // of all ranks together, at least one each; 0: one per usable core
  CacheOptions cache;
  std::int64_t pages = 0;  // of every rank's pool
};

// kUnsupported naming the dimension where the model does not divide. step() takes page ids within
// `pages`; the pool it is given is the caller's account of pages only and holds no entries.
Result<std::unique_ptr<Native>> make_ranked(const m3::ModelConfig& config,
                                            const m3::ModelWeights& weights,
                                            const RankedOptions& options,
                                            const NativeOptions& native);

}  // namespace monolayer::cpu

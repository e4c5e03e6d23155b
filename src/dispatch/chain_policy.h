// The tables as the chains of a backend go by them: a deployment judged once, then every step.
#pragma once

#include <memory>
#include <string>

#include "backend/cpu/native.h"
#include "dispatch/dispatcher.h"

namespace monolayer::dispatch {

// Thread-safe: the ranks of one process share it. Rank 0 counts.
class ChainPolicy final : public cpu::PathPolicy {
 public:
  // `path`: "auto", "native" or "mono", which refuses where no step could be fused. kUnsupported
  // naming --path, or the rows that fail.
  static Result<std::unique_ptr<ChainPolicy>> create(const m3::ModelConfig& config,
                                                     const m3::ModelWeights& weights,
                                                     const DeploymentOptions& options,
                                                     const std::string& path);

  // Whether any step can run fused; a chain need not be able to otherwise.
  bool any_fused() const;
  // Why none can, or an empty text.
  std::string deployment_reason() const;

  std::unique_ptr<cpu::StepDriver> driver(mono::Lifecycle& lifecycle, cpu::CacheSource caches,
                                          int rank) override;
  StepCounters counters() const { return dispatcher_.counters(); }

 private:
  explicit ChainPolicy(Dispatcher dispatcher, PathChoice choice)
      : dispatcher_(std::move(dispatcher)), choice_(choice) {}
  Dispatcher dispatcher_;
  const PathChoice choice_;
};

}  // namespace monolayer::dispatch

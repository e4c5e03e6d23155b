// The tables as the chains of a backend go by them: a deployment judged once, then every step.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/native.h"
#include "dispatch/dispatcher.h"

namespace monolayer::dispatch {

// Thread-safe: the ranks of one process share it. Rank 0 counts.
class ChainPolicy final : public cpu::PathPolicy, public cpu::StepJudge {
 public:
  // `path`: "auto", "native" or "mono", which refuses where no step could be fused. kUnsupported
  // naming --path, or the rows that fail. `measured`, for who asks as StepJudge: by ascending
  // rows; steps beyond them go native unless "mono" was asked for; empty: no limits.
  static Result<std::unique_ptr<ChainPolicy>> create(const m3::ModelConfig& config,
                                                     const m3::ModelWeights& weights,
                                                     const DeploymentOptions& options,
                                                     const std::string& path,
                                                     std::span<const cpu::FusedSpan> measured = {});

  // Whether any step can run fused; a chain need not be able to otherwise.
  bool any_fused() const;
  // Why none can, or an empty text.
  std::string deployment_reason() const;
  // Which steps run fused and which native, in words.
  std::string steps_reason() const;

  std::unique_ptr<cpu::StepDriver> driver(mono::Lifecycle& lifecycle, cpu::CacheSource caches,
                                          int rank) override;
  bool fused(const cpu::StepShape& shape, int rank) override;
  std::string reason(const cpu::StepShape& shape) const override;
  StepCounters counters() const { return dispatcher_.counters(); }

 private:
  ChainPolicy(Dispatcher dispatcher, PathChoice choice, std::vector<cpu::FusedSpan> measured,
              bool by_passes)
      : dispatcher_(std::move(dispatcher)),
        choice_(choice),
        measured_(std::move(measured)),
        by_passes_(by_passes) {}
  // With the limit that was measured for so many rows.
  StepFacts judged(const cpu::StepShape& shape) const;

  Dispatcher dispatcher_;
  const PathChoice choice_;
  const std::vector<cpu::FusedSpan> measured_;
  const bool by_passes_;  // the chain asks for the passes of a larger step, not for the step
};

}  // namespace monolayer::dispatch

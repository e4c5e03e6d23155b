// The model with its layers fused where a step allows it: the mono executor between the native
// chain's embedding and head, the native chain for every other step.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/mono_executor.h"
#include "backend/cpu/native_chain.h"

namespace monolayer::cpu {

class MonoChain : public NativeChain {
 public:
  using NativeChain::NativeChain;

  // Of executors made from now on; for benches.
  void set_mono_options(const MonoOptions& options) { mono_options_ = options; }
  // The one of the last fused step, or null.
  const MonoExecutor* executor() const { return executor_.get(); }
  double prepare_seconds() const { return prepare_seconds_; }  // of the last fused step, host only
  Status close() override;

 protected:
  Status run_layers(const StepContext& step, m3::TraceSink* sink) override;

 private:
  StepShape shape_of(const StepContext& step) const;
  // Empty, or why the step goes native.
  std::string refusal(const StepContext& step) const;
  Status bind(const StepContext& step);
  Status fused(const StepContext& step, m3::TraceSink* sink);

  MonoOptions mono_options_;
  std::unique_ptr<MonoExecutor> executor_;
  const std::byte* bound_ = nullptr;  // the cache it was made for
  std::int64_t bound_pages_ = 0;
  double prepare_seconds_ = 0;
  std::vector<mono::StepRow> rows_;
  std::vector<bf16_t> hidden_, residual_;
};

}  // namespace monolayer::cpu

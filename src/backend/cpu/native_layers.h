// The native chain's layers behind the executor interface: what check mode compares the fused path
// with. Each stage runs on the whole team before the next begins.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/native_chain.h"
#include "backend/cpu/step_rows.h"
#include "mono/executor.h"

namespace monolayer::cpu {

// Layers of an executor's configuration on a chain, and what a fused layer gives apart: the stream
// after attention, and the MLP's output before it is added.
class NativeLayerChain : public NativeChain {
 public:
  NativeLayerChain(const mono::ExecutorConfig& config, ThreadTeam& team, const Tiles& tiles);

  Status prepare_rows(std::span<const mono::StepRow> rows);
  Status run_layer(std::int64_t layer, const bf16_t* hidden, const bf16_t* residual,
                   bf16_t* hidden_out, bf16_t* residual_out);
  std::span<const std::int32_t> selections() const { return selections_; }

 private:
  void before_mlp_sum() override;

  const Caches caches_;
  const RowBounds bounds_;
  LiveRows live_{};  // the caller's row of each row of the plan
  std::size_t caller_rows_ = 0;
  std::vector<float> middle_;  // stream after attention, live rows
  std::vector<std::int32_t> selections_;
};

class NativeLayers : public mono::Executor {
 public:
  // With a team of its own of `threads`. Errors as MonoExecutor::create; not collective, its runs
  // are.
  static Result<std::unique_ptr<mono::Executor>> create(const mono::ExecutorConfig& config,
                                                        int threads, const Tiles* tiles = nullptr);

  Status prepare(std::span<const mono::StepRow> rows) override {
    return chain_->prepare_rows(rows);
  }
  Status prepare_checked(std::span<const mono::StepRow> rows) override { return prepare(rows); }
  Status run_layers(std::int64_t first, std::int64_t count, const bf16_t* hidden,
                    const bf16_t* residual, bf16_t* hidden_out, bf16_t* residual_out) override;
  std::span<const std::int32_t> selections() const override { return chain_->selections(); }
  const mono::ExecutorStatistics& statistics() const override { return statistics_; }
  Status close() override { return {}; }

 private:
  NativeLayers() = default;
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<NativeLayerChain> chain_;
  mono::ExecutorStatistics statistics_;
};

}  // namespace monolayer::cpu

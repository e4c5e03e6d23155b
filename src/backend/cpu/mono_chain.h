// The model with its sparse layers fused where a step allows it: the library, as any serving engine
// uses it, between the native chain's dense layers and head; the native chain for every other step.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/library_backend.h"
#include "backend/cpu/native_chain.h"
#include "mono/lifecycle.h"

namespace monolayer::cpu {

class MonoChain : public NativeChain {
 public:
  // `layers`: what the library is built of, without caches; where it is kUnsupported every step
  // goes native.
  MonoChain(m3::ModelConfig config, ModelView view, ThreadTeam& team, const Tiles& tiles,
            const NativeOptions& options, Result<mono::LibraryInput> layers);

  // Of executors made from now on; for benches.
  void set_mono_options(MonoOptions options);
  // The library's, or null.
  const MonoExecutor* executor();
  double prepare_seconds() const { return prepare_seconds_; }  // of the last fused step, host only
  Status close() override;
  // Also makes the library, where a step may be fused.
  Status prepare_for(std::span<const StepSequence> largest, CachePool& cache) override;

 protected:
  Status run_layers(const StepContext& step, m3::TraceSink* sink) override;

 private:
  class Paths;
  class Preparation;
  // A step as the library takes it; pointers into the step's plan where one table serves as it is.
  struct StepArrays {
    std::vector<std::int32_t> query_lens, seq_lens, main_table, index_table;
    std::vector<std::int64_t> main_slots, index_slots, positions;
  };

  Status bind(const StepContext& step);
  ml_step library_step(const StepContext& step);
  Status fused(mono::Library& library, const StepContext& step, m3::TraceSink* sink);
  Status forward(mono::Library& library, const StepContext& step, std::int64_t first,
                 std::int64_t count, m3::TraceSink* sink);

  LibraryBackend backend_;
  std::vector<std::int64_t> fused_layers_;  // ascending ids
  mono::Lifecycle lifecycle_;
  std::unique_ptr<StepDriver> driver_;
  const std::byte* bound_ = nullptr;  // the pool that is bound
  CacheOptions bound_options_;
  std::int64_t bound_pages_ = 0, generation_ = 0;
  std::vector<ml_cache_spec> caches_;
  double prepare_seconds_ = 0;
  StepArrays arrays_;
  std::vector<bf16_t> hidden_, no_residual_;
};

}  // namespace monolayer::cpu

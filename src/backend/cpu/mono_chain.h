// The model with its sparse layers fused where a step allows it: the library, as any serving engine
// uses it, between the native chain's dense layers and head; the native chain for every other step.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
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
  // What admitting the last fused step cost: from its decision to its first layer, and asking for
  // the memory of that.
  double prepare_seconds() const {
    return std::chrono::duration<double>(asking_ + preparing_).count();
  }
  Status close() override;
  Status step(std::span<const StepSequence> sequences, CachePool& cache, std::vector<float>& logits,
              m3::TraceSink* sink) override;
  // Also makes the library, where a step may be fused.
  Status prepare_for(std::span<const StepSequence> largest, CachePool& cache) override;

 protected:
  Status run_layers(const StepContext& step, m3::TraceSink* sink) override;

 private:
  class Paths;
  class Preparation;
  // A step as the library takes it.
  struct StepArrays {
    std::array<std::int32_t, mono::kMaxRows> query_lens, seq_lens;
    std::array<std::int64_t, mono::kMaxRows> main_slots, index_slots, positions;
  };
  // What decides whether caches are bound already.
  struct Pool {
    const std::byte* k = nullptr;
    std::int64_t pages = 0;
    CacheOptions options;
    bool operator==(const Pool&) const = default;
  };

  void ask_for_step(std::int64_t rows);
  Status go_native(const StepContext& step, m3::TraceSink* sink);
  static Pool pool_of(const StepContext& step);
  Status bind(const StepContext& step);
  void widen_tables(std::size_t entries);
  const std::int32_t* lay_tables(std::span<const PlannedSequence> sequences, std::size_t width);
  ml_step library_step(const StepContext& step);
  Status prepare_step(mono::Library& library, const StepContext& step);
  void fused(mono::Library& library, const StepContext& step, m3::TraceSink* sink, Status& status);
  Status run_fused(mono::Library& library, const StepContext& step, m3::TraceSink* sink);
  Status forward(mono::Library& library, const StepContext& step, std::int64_t first,
                 std::int64_t count, m3::TraceSink* sink);

  // What a step touches before its first layer, first and together.
  std::unique_ptr<StepDriver> driver_;
  std::array<std::span<const std::byte>, 2> driver_memory_;  // StepDriver::step_memory()
  const void* driver_virtuals_ = nullptr;
  Pool bound_;
  std::int64_t generation_ = 0;
  std::chrono::steady_clock::time_point arrived_;
  std::chrono::steady_clock::duration asking_{}, preparing_{};
  StepArrays arrays_{};
  std::vector<std::int32_t> tables_;  // of several sequences

  LibraryBackend backend_;
  std::vector<std::int64_t> fused_layers_;  // ascending ids
  mono::Lifecycle lifecycle_;
  std::vector<ml_cache_spec> caches_;
  std::vector<bf16_t> hidden_, no_residual_;
};

}  // namespace monolayer::cpu

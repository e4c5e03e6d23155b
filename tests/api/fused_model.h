// A whole model decoded through the public interface, as a serving engine would embed it:
// embedding, dense layers and head are the caller's, the sparse layers the library's.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cpu/model_view.h"
#include "backend/cpu/mono_executor.h"
#include "backend/cpu/native.h"
#include "backend/cpu/thread_team.h"
#include "m3/config.h"
#include "m3/weights.h"
#include "mono/library_spec.h"
#include "monolayer/monolayer.hpp"
#include "tp/group.h"

namespace monolayer::test {

// One rank.
class FusedModel {
 public:
  struct Options {
    int rank = 0, ranks = 1, threads = 1;
    tp::Group* dense_group = nullptr;  // of the dense layers; null with one rank
    ml_group* group = nullptr;         // of the library
    m3::RotaryTable rotary;
  };
  // Borrows everything; `pool` holds the rank's heads. Layers that are not sparse come first.
  static Result<std::unique_ptr<FusedModel>> create(const m3::ModelConfig& config,
                                                    const m3::ModelWeights& weights,
                                                    cpu::CachePool& pool, const Options& options);

  // As Native::step. `padded_rows` are added after the last request.
  Status step(std::span<const cpu::StepSequence> sequences, std::vector<float>& logits,
              std::int64_t padded_rows = 0);
  Status close();

  api::Mono& library() { return *library_; }

 private:
  explicit FusedModel(const m3::ModelConfig& config) : config_(config) {}
  Status build_dense(const m3::ModelWeights& weights, const m3::RankShape& shape,
                     const Options& options);
  Status build_library(const m3::ModelWeights& weights, const Options& options);
  Status run_library(std::span<const cpu::StepSequence> sequences, std::int64_t rows);

  const m3::ModelConfig& config_;
  const cpu::Tiles* tiles_ = nullptr;
  cpu::CachePool* pool_ = nullptr;
  cpu::ModelView whole_;
  cpu::ModelView dense_view_;
  m3::ModelConfig dense_config_;
  std::unique_ptr<cpu::ThreadTeam> team_;
  std::unique_ptr<cpu::MonoExecutor> dense_;
  mono::LibraryInput input_;
  std::unique_ptr<api::Mono> library_;
  std::int32_t first_sparse_ = 0, sparse_ = 0;
  std::vector<bf16_t> hidden_, residual_;
};

// Whole-model entries of the first `pages` pages -> one rank's pool.
void copy_heads(const m3::ModelConfig& config, const m3::RankShape& shape,
                const cpu::CachePool& whole, cpu::CachePool& rank);

std::int32_t greedy(std::span<const float> logits);

}  // namespace monolayer::test

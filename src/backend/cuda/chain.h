// The chain behind cuda::create_native: native.cc opens and binds it, chain_steps.cc runs its
// steps.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/step_plan.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/native.h"
#include "backend/cuda/peers.h"
#include "backend/cuda/rank.h"
#include "m3/rope.h"
#include "tp/group.h"

namespace monolayer::cuda {

// What runs in one launch sequence: the step's rows decide how shared memory is divided.
inline constexpr std::array<int, 5> kColumnPlans{1, 2, 4, 8, kMaxRows};

class Chain : public cpu::Native {
 public:
  Chain(const m3::ModelConfig& config, const NativeOptions& options)
      : config_(config),
        options_(options),
        fuses_(std::any_of(config.layers.begin(), config.layers.end(),
                           [](const auto& l) { return l.sparse_attention && l.moe; })),
        rope_(config.rope_theta, config.rotary_dim) {}
  ~Chain() override {
    cudaSetDevice(options_.device);
    drop_graphs();
    if (host_step_ != nullptr) cudaFreeHost(host_step_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  Status open(const m3::ModelWeights& weights);
  Status step(std::span<const cpu::StepSequence> sequences, cpu::CachePool& cache,
              std::vector<float>& logits, m3::TraceSink* sink) override;
  const cpu::Traffic& last_traffic() const override { return traffic_; }
  const cpu::Traffic& total_traffic() const override { return traffic_; }
  const cpu::PathCounts& paths() const override { return paths_; }
  Status prepare(cpu::CachePool& cache) override;
  Status close() override;

 private:
  Status open_device();
  Status ensure_bound(const cpu::CachePool& cache);
  Status bind(const cpu::CachePool& cache);
  Status bind_ranks(const cpu::CachePool& cache);
  // Ranks of the whole group, those of this chain among them.
  int group_size() const {
    return options_.group != nullptr ? options_.group->size() : options_.virtual_ranks;
  }
  const Params& params() const { return ranks_.front()->params(); }
  const std::vector<Layer>& layers() const { return ranks_.front()->layers(); }
  Status plan_step(std::span<const cpu::StepSequence> sequences, const cpu::CachePool& cache);
  cpu::StepShape step_shape(const cpu::CachePool& cache) const;
  void choose_path(const cpu::CachePool& cache);
  // Whether some step may be fused, so that its kernels must fit.
  bool may_fuse() const { return options_.policy != nullptr || options_.path == Path::kMono; }
  Status run_step(cpu::CachePool& cache, std::vector<float>& logits, m3::TraceSink* sink);
  Status run_rows(std::int64_t first, std::int64_t rows, std::vector<float>& logits,
                  m3::TraceSink* sink);
  void fill_step(std::int64_t first, std::int64_t rows, bool all_logits);
  bool divide_memory(int rows, Params& p) const;
  // Logits of `rows` rows of all ranks, [rows, vocab].
  Result<std::vector<float>> gather_logits(std::int64_t rows);
  Status trace_layer(std::int64_t layer, m3::TraceSink& sink);
  Status launch(const Params& p, int layer_count);
  Status launch_layer(Params p, int layer);
  Status launch_fused_run(Params p, int first, int last);
  Status trace(const Params& p, m3::TraceSink& sink);
  Status replay(std::size_t plan);
  Status check_record();
  void drop_graphs();
  template <typename T>
  Status allocate(T*& out, std::int64_t count, const char* what);
  template <typename T>
  Result<std::vector<T>> download(const T* from, std::int64_t count);

  const m3::ModelConfig& config_;
  const NativeOptions options_;
  const bool fuses_;  // some layer can be fused
  const m3::Rope rope_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // of this chain, in one launch
  std::unique_ptr<Peers> peers_;              // null for a group of one
  cudaStream_t stream_ = nullptr;
  int blocks_ = 0, shared_limit_ = 0;

  cpu::StepPlan plan_;
  cpu::Traffic traffic_;
  cpu::PathCounts paths_;
  std::uint64_t steps_ = 0;  // begun
  const cpu::CachePool* bound_ = nullptr;
  std::vector<DeviceBuffer> buffers_;
  Params* device_params_ = nullptr;  // of every rank, if there are several
  std::uint32_t* barriers_ = nullptr;
  Step* host_step_ = nullptr;
  Step* device_step_ = nullptr;
  std::int32_t* device_pages_ = nullptr;
  std::vector<std::int32_t> host_pages_;
  bool fused_ = false;  // the step at hand
  std::string why_native_;
  std::array<std::array<cudaGraphExec_t, kColumnPlans.size()>, 2> graphs_{};  // native, fused
};

}  // namespace monolayer::cuda

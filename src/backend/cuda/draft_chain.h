// The draft on a device: draft.cc opens it, draft_steps.cc runs its steps.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "backend/cpu/step_plan.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/draft.h"
#include "backend/cuda/draft_kernels.h"
#include "m3/rope.h"

namespace monolayer::cuda {

// Pinned host memory of T.
template <typename T>
class Pinned {
 public:
  Pinned() = default;
  ~Pinned() { cudaFreeHost(data_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  Status create(std::int64_t count) {
    cudaFreeHost(data_);
    data_ = nullptr;
    ML_CUDA(cudaMallocHost(reinterpret_cast<void**>(&data_),
                           static_cast<std::size_t>(count) * sizeof(T)));
    return {};
  }
  T* get() const { return data_; }
  T* operator->() const { return data_; }

 private:
  T* data_ = nullptr;
};

class CudaDraft final : public cpu::Draft {
 public:
  CudaDraft(const m3::DraftConfig& config, const m3::ModelConfig& target_config,
            const m3::DraftWeights& weights, const TensorView& embed, const DraftOptions& options)
      : options_(options),
        shape_(cache_shape(config, target_config)),
        rope_(config.rope_theta, config.head_dim),
        target_ids_(weights.target_ids),
        embed_(embed) {}
  ~CudaDraft() override {
    cudaSetDevice(options_.device);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  CudaDraft(const CudaDraft&) = delete;
  CudaDraft& operator=(const CudaDraft&) = delete;

  Status open(const m3::DraftWeights& w, const TensorView& head);
  Status combine(std::span<const float> kept, float* out) override;
  Status step(std::span<const cpu::DraftSequence> sequences, cpu::CachePool& cache,
              std::vector<cpu::Proposal>& proposals) override;
  Status prepare_for(std::int64_t /*rows*/, std::int64_t /*proposals*/,
                     cpu::CachePool& cache) override {
    return bind(cache);
  }
  std::span<const float> logits() const override { return logits_; }
  const cpu::Traffic& total_traffic() const override { return traffic_; }

 private:
  // Tensors one after the other, as they are stored.
  Status upload(std::initializer_list<const TensorView*> tensors, const std::uint16_t*& out);
  template <typename T>
  Status allocate(T*& out, std::int64_t count);
  Status open_buffers();
  Status bind(const cpu::CachePool& cache);
  Status step_rows(std::span<const cpu::DraftSequence> sequences, std::int64_t first,
                   std::vector<cpu::Proposal>& proposals);
  Status fill(std::span<const cpu::DraftSequence> sequences, std::int64_t first, int rows);
  Status run(int rows, int proposing);
  Status fetch(std::int64_t first, int proposing, std::vector<cpu::Proposal>& proposals);

  const DraftOptions options_;
  const m3::ModelConfig shape_;
  const m3::Rope rope_;
  const std::vector<std::int32_t> target_ids_;
  const TensorView embed_;
  cudaStream_t stream_ = nullptr;
  std::int64_t vocab_ = 0;
  cpu::StepPlan plan_;
  std::vector<cpu::StepSequence> inputs_;
  std::vector<float> logits_;
  cpu::Traffic traffic_;

  std::vector<DeviceBuffer> buffers_;
  // Weights, BF16.
  const std::uint16_t *fc_ = nullptr, *qkv_ = nullptr, *o_ = nullptr, *gate_up_ = nullptr,
                      *down_ = nullptr, *head_ = nullptr;
  const std::uint16_t *fc_norms_ = nullptr, *input_norms_ = nullptr, *post_norm_ = nullptr,
                      *final_norm_ = nullptr;
  // Of a step: what is uploaded, activations, results.
  DraftRows* rows_ = nullptr;
  float* angles_ = nullptr;            // [rows, head_dim]
  std::uint16_t* entering_ = nullptr;  // [rows, 2, hidden]: embedding, state; or [rows, 3, hidden]
  std::uint16_t* wide_ = nullptr;      // the same, normed
  std::uint16_t* hidden_ = nullptr;    // [proposing, hidden]: the residual stream
  std::uint16_t *q_ = nullptr, *attended_ = nullptr, *normed_ = nullptr, *mid_ = nullptr;
  float *projected_ = nullptr, *partials_ = nullptr, *gate_up_out_ = nullptr,
        *device_logits_ = nullptr;
  DraftBest* best_ = nullptr;
  Pinned<DraftRows> host_rows_;
  Pinned<float> host_angles_;
  Pinned<std::uint16_t> host_entering_;
  Pinned<DraftBest> host_best_;
  int pages_ = 0;  // of the longest context of the rows at hand

  const cpu::CachePool* bound_ = nullptr;
  std::int64_t bound_pages_ = 0;
  DeviceBuffer k_cache_, v_cache_, device_tables_;
  Pinned<std::int32_t> host_tables_;
};

}  // namespace monolayer::cuda

// The chain behind cuda::create_native: native.cc opens and binds it, chain_steps.cc runs its
// steps, chain_results.cc fetches what they give.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/step_plan.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/head_plan.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/native.h"
#include "backend/cuda/peers.h"
#include "backend/cuda/random_model.h"
#include "backend/cuda/rank.h"
#include "m3/rope.h"
#include "tp/group.h"

namespace monolayer::cuda {

// What runs in one launch sequence: the step's rows decide how shared memory is divided.
inline constexpr std::array<int, 9> kColumnPlans{1, 2, 3, 4, 5, 6, 7, 8, kMaxRows};

inline std::size_t column_plan(std::int64_t rows) {
  std::size_t i = 0;
  while (i + 1 < kColumnPlans.size() && kColumnPlans[i] < rows) ++i;
  return i;
}

class Chain : public BenchChain {
 public:
  // `random.seed` 0: of a model's own weights.
  Chain(const m3::ModelConfig& config, const NativeOptions& options, const RandomOptions& random)
      : config_(config),
        options_(options),
        random_(random),
        fuses_(std::any_of(config.layers.begin(), config.layers.end(),
                           [](const auto& l) { return l.sparse_attention && l.moe; })),
        rope_(config.rope_theta, config.rotary_dim) {}
  ~Chain() override {
    cudaSetDevice(options_.device);
    drop_graphs();
    drop_bench();
    if (host_step_ != nullptr) cudaFreeHost(host_step_);
    if (shards_ != nullptr) cudaFreeHost(shards_);
    if (host_best_ != nullptr) cudaFreeHost(host_best_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  using MakeRank = std::function<Result<std::unique_ptr<Rank>>(const m3::RankShape&)>;
  Status open(const MakeRank& make);
  Status step(std::span<const cpu::StepSequence> sequences, cpu::CachePool& cache,
              std::vector<float>& logits, m3::TraceSink* sink) override;
  std::span<const std::int32_t> greedy_ids() const override { return greedy_ids_; }
  const cpu::Traffic& last_traffic() const override { return traffic_; }
  const cpu::Traffic& total_traffic() const override { return traffic_; }
  const cpu::PathCounts& paths() const override { return paths_; }
  Status prepare(cpu::CachePool& cache) override;
  std::string kernel_family() const override;
  Status capture(std::span<const std::int64_t> layers) override;
  std::span<const float> captured() const override { return kept_; }
  Status close() override;

  Status load(std::span<const cpu::StepSequence> sequences, cpu::CachePool& cache) override;
  Result<double> time(Part part, bool fused) override;
  Result<std::uint64_t> digest() override;
  Result<double> stream() override;
  Bytes weight_bytes() const override;
  Result<std::int64_t> free_bytes() const override;
  std::int64_t page_bytes(const cpu::CacheOptions& caches) const override;
  bool m3_kernels() const override;

 private:
  Status open_device();
  Status ensure_bound(const cpu::CachePool& cache);
  Status bind(const cpu::CachePool& cache);
  Status bind_ranks(const cpu::CachePool& cache);
  // Ranks of the whole group, those of this chain among them.
  int group_size() const {
    if (options_.group != nullptr) return options_.group->size();
    return random_.stand_in > 1 ? random_.stand_in : options_.virtual_ranks;
  }
  const Params& params() const { return ranks_.front()->params(); }
  const std::vector<Layer>& layers() const { return ranks_.front()->layers(); }
  Kernels kernels_for(const Layer& layer) const {
    return options_.any_kernels || blocks_ < kLeastM3Blocks ? Kernels::kAny
                                                            : kernels_of(params().shape, layer);
  }
  // `rows`: that the launch is for. Those for M3 give rows after the final norm only if it has more
  // than kColumns results.
  Kernels kernels_for_head(const Params& p, int rows) const {
    const bool m3 = !options_.any_kernels && blocks_ >= kLeastM3Blocks && rows > kColumns &&
                    p.dense_slots >= kLeastSlots && m3_head(p.shape, p.lm_head);
    return m3 ? Kernels::kDenseM3 : Kernels::kAny;
  }
  Status plan_step(std::span<const cpu::StepSequence> sequences, const cpu::CachePool& cache);
  cpu::StepShape judged_shape(const cpu::CachePool& cache) const;
  void choose_path(const cpu::CachePool& cache);
  // Whether some step may be fused, so that its kernels must fit.
  bool may_fuse() const { return options_.policy != nullptr || options_.path == Path::kMono; }
  Status run_step(cpu::CachePool& cache, std::vector<float>& logits, m3::TraceSink* sink);
  Status run_rows(std::int64_t first, std::int64_t rows, std::vector<float>& logits,
                  m3::TraceSink* sink);
  // The loaded step's rows [first, first + rows) to the device.
  Status upload_step(std::int64_t first, std::int64_t rows, bool all_logits);
  void fill_step(std::int64_t first, std::int64_t rows, bool all_logits);
  void fill_results(std::int64_t first, std::int64_t rows, bool all_logits);
  bool divide_memory(int rows, Params& p) const;
  // Keys of all result rows of all ranks, for likeliest(), and the logits of the first `rows`, for
  // copy_logits().
  Status gather_results(std::int64_t rows);
  void copy_logits(std::int64_t row, std::int64_t rows, float* out) const;
  std::uint64_t likeliest(std::int64_t row) const;
  // Whose part of the vocabulary stands for this rank's.
  std::int64_t shard_of(std::int64_t rank) const { return random_.stand_in > 1 ? 0 : rank; }
  void take_results(std::vector<float>& logits);
  Status check_results() const;
  Status trace_layer(std::int64_t layer, m3::TraceSink& sink);
  bool is_kept(std::int64_t layer) const {
    return std::find(kept_layers_.begin(), kept_layers_.end(), layer) != kept_layers_.end();
  }
  // On the device: what enters this layer, if it is to be kept.
  Status keep_rows(std::int64_t layer);
  // To the host: of rows [first, first + rows) of the step.
  Status fetch_kept(std::int64_t first, std::int64_t rows);
  Status launch_begin(const Params& p);
  Status launch_layers(const Params& p, int first, int last);
  Status launch(const Params& p, int layer_count);
  // Head and likeliest tokens, for as many rows.
  Status launch_head(const Params& p, int rows);
  Status launch_layer(Params p, int layer);
  Status launch_fused_run(Params p, int first, int last);
  Status trace(const Params& p, m3::TraceSink& sink);
  Status replay(std::size_t plan);
  Status check_record();
  void drop_graphs();
  template <typename T>
  Status allocate(T*& out, std::int64_t count, const char* what);
  template <typename T>
  Result<std::vector<T>> download(const T* from, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    ML_CUDA(cudaMemcpyAsync(values.data(), from, values.size() * sizeof(T), cudaMemcpyDeviceToHost,
                            stream_));
    ML_CUDA(cudaStreamSynchronize(stream_));
    return values;
  }

  const m3::ModelConfig& config_;
  const NativeOptions options_;
  const RandomOptions random_;
  const bool fuses_;  // some layer is sparse: others alone are not worth a path of their own
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
  std::int64_t bound_pages_ = 0;
  cpu::CacheOptions bound_options_;
  std::vector<DeviceBuffer> buffers_;
  Params* device_params_ = nullptr;  // of every rank, if there are several
  std::uint32_t* barriers_ = nullptr;
  Step* host_step_ = nullptr;
  float* shards_ = nullptr;  // pinned: [rank of this chain][kMaxRows][its share of the vocabulary]
  std::uint64_t* best_ = nullptr;       // on the device: [rank of this chain][kMaxRows] keys
  std::uint64_t* host_best_ = nullptr;  // pinned, the same
  std::vector<std::uint64_t> best_of_;  // [rank of the group][kMaxRows]
  // Of the launch: the step's result behind each row of logits, or -1; rows whose logits are wanted
  // come first.
  std::array<std::int64_t, kMaxRows> result_of_{};
  std::int64_t wanted_rows_ = 0;
  std::vector<std::uint64_t> likeliest_;  // of each result of the step
  std::vector<std::int32_t> greedy_ids_;
  std::vector<float> gathered_;           // logits of a group
  const float* gathered_from_ = nullptr;  // [rank][rows][its share]
  Step* device_step_ = nullptr;
  std::int32_t* device_pages_ = nullptr;
  std::vector<std::int32_t> host_pages_;
  // Of benches: the loaded step's graphs by part and path, its tokens, events.
  struct Bench {
    std::array<std::array<cudaGraphExec_t, 2>, 2> graphs{};
    std::int64_t rows = 0, streams = 0;
    Part part = Part::kStep;
    DeviceBuffer sink;
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  Status bench_graph(Part part, cudaGraphExec_t& exec);
  void drop_bench();
  Bench bench_;

  std::vector<std::int64_t> kept_layers_;
  DeviceBuffer kept_device_;  // BF16 [kept layers, kMaxRows, hidden]
  std::vector<float> kept_;   // [rows of the step, kept layers, hidden]

  bool fused_ = false;  // the step at hand
  std::string why_native_;
  std::array<std::array<cudaGraphExec_t, kColumnPlans.size()>, 2> graphs_{};  // native, fused
};

}  // namespace monolayer::cuda

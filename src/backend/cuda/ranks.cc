#include "backend/cuda/ranks.h"

#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/thread_team.h"
#include "backend/cuda/device_memory.h"
#include "tp/group.h"

namespace monolayer::cuda {
namespace {

// Ranks tell different things of a step, at the same time.
class LockedSink : public m3::TraceSink {
 public:
  explicit LockedSink(m3::TraceSink* sink) : sink_(sink) {}
  void hidden(std::int64_t layer, std::int64_t row, std::span<const float> values) override {
    const std::lock_guard lock(mutex_);
    sink_->hidden(layer, row, values);
  }
  void blocks(std::int64_t layer, std::int64_t row, std::int64_t head,
              std::span<const std::int32_t> ids, std::span<const float> scores) override {
    const std::lock_guard lock(mutex_);
    sink_->blocks(layer, row, head, ids, scores);
  }
  void experts(std::int64_t layer, std::int64_t row, std::span<const std::int32_t> ids,
               std::span<const float> scores) override {
    const std::lock_guard lock(mutex_);
    sink_->experts(layer, row, ids, scores);
  }

 private:
  m3::TraceSink* sink_;
  std::mutex mutex_;
};

struct RankChain {
  std::unique_ptr<cpu::Native> native;
  std::vector<float> logits;
  Status status;
};

class DeviceRanks final : public cpu::Native {
 public:
  DeviceRanks(std::unique_ptr<cpu::ThreadTeam> drivers,
              std::vector<std::unique_ptr<tp::Group>> groups)
      : drivers_(std::move(drivers)), groups_(std::move(groups)), ranks_(groups_.size()) {}

  ~DeviceRanks() override {
    each([&](RankChain& rank, tp::Group& group, int) {
      if (rank.native != nullptr) rank.status = rank.native->close();
      rank.native.reset();
      const Status closed = group.close();
      if (!closed.ok()) rank.status = closed;  // peers that failed are why; nothing left to do
    });
  }

  Status start(const m3::ModelConfig& config, const m3::ModelWeights& weights,
               const NativeOptions& options) {
    each([&](RankChain& rank, tp::Group& group, int r) {
      NativeOptions mine = options;
      mine.device = r;
      mine.virtual_ranks = 1;
      mine.group = &group;
      auto native = create_native(config, weights, mine);
      rank.status = native.status();
      if (native.ok()) rank.native = std::move(native).value();
    });
    return first_failure();
  }

  Status step(std::span<const cpu::StepSequence> sequences, cpu::CachePool& cache,
              std::vector<float>& logits, m3::TraceSink* sink) override {
    LockedSink locked(sink);
    each([&](RankChain& rank, tp::Group&, int) {
      rank.status =
          rank.native->step(sequences, cache, rank.logits, sink != nullptr ? &locked : nullptr);
    });
    ML_RETURN_IF_ERROR(first_failure());
    try {
      logits = ranks_.front().logits;
    } catch (const std::bad_alloc&) {
      return {Code::kResourceExhausted, "step", "no host memory for the logits"};
    }
    return {};
  }
  Status prepare(cpu::CachePool& cache) override {
    each([&](RankChain& rank, tp::Group&, int) { rank.status = rank.native->prepare(cache); });
    return first_failure();
  }
  std::string kernel_family() const override { return ranks_.front().native->kernel_family(); }
  Status capture(std::span<const std::int64_t> layers) override {
    each([&](RankChain& rank, tp::Group&, int) { rank.status = rank.native->capture(layers); });
    return first_failure();
  }
  std::span<const std::int32_t> greedy_ids() const override {
    return ranks_.front().native->greedy_ids();
  }
  std::span<const float> captured() const override { return ranks_.front().native->captured(); }
  const cpu::Traffic& last_traffic() const override { return traffic_; }
  const cpu::Traffic& total_traffic() const override { return traffic_; }
  const cpu::PathCounts& paths() const override { return ranks_.front().native->paths(); }

 private:
  template <typename F>
  void each(F&& body) {
    drivers_->each([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      try {
        body(ranks_[i], *groups_[i], r);
      } catch (const std::bad_alloc&) {
        ranks_[i].status = {Code::kResourceExhausted, "CUDA ranks",
                            "no host memory on rank " + std::to_string(r)};
        // Peers must not wait for what this rank will not do any more.
        groups_[i]->fail(ranks_[i].status);
      }
    });
  }
  Status first_failure() const {
    for (const RankChain& rank : ranks_) ML_RETURN_IF_ERROR(rank.status);
    return {};
  }

  std::unique_ptr<cpu::ThreadTeam> drivers_;  // one thread a rank
  std::vector<std::unique_ptr<tp::Group>> groups_;
  std::vector<RankChain> ranks_;
  cpu::Traffic traffic_;
};

}  // namespace

Result<std::unique_ptr<cpu::Native>> create_ranks(const m3::ModelConfig& config,
                                                  const m3::ModelWeights& weights, int ranks,
                                                  const NativeOptions& options) {
  ML_RETURN_IF_ERROR(m3::rank_shape(config, 0, ranks).status());
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0)
    return Status(Code::kUnsupported, "CUDA",
                  std::string("no device: ") + cudaGetErrorString(found));
  if (ranks == 1 || devices == 1) {
    NativeOptions together = options;
    together.virtual_ranks = ranks;
    return create_native(config, weights, together);
  }
  if (devices < ranks)
    return Status(Code::kUnsupported, "CUDA",
                  std::to_string(ranks) + " ranks need as many devices, or one for all; " +
                      std::to_string(devices) + " are there");
  try {
    ML_ASSIGN_OR_RETURN(auto groups, tp::make_thread_group(ranks));
    ML_ASSIGN_OR_RETURN(auto drivers, cpu::ThreadTeam::create({.threads = ranks, .pin = false}));
    auto native = std::make_unique<DeviceRanks>(std::move(drivers), std::move(groups));
    ML_RETURN_IF_ERROR(native->start(config, weights, options));
    return std::unique_ptr<cpu::Native>(std::move(native));
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "CUDA ranks", "no host memory for them");
  }
}

}  // namespace monolayer::cuda

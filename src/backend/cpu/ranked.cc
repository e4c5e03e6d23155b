#include "backend/cpu/ranked.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "tp/group.h"

namespace monolayer::cpu {
namespace {

// One rank's sink: heads get their global numbers, and what every rank computes is told once.
class RankSink : public m3::TraceSink {
 public:
  RankSink(m3::TraceSink& sink, std::mutex& mutex, const m3::RankShape& shape, bool tells_heads)
      : sink_(sink), mutex_(mutex), shape_(shape), tells_heads_(tells_heads) {}

  void hidden(std::int64_t layer, std::int64_t row, std::span<const float> values) override {
    if (shape_.rank != 0) return;
    const std::lock_guard lock(mutex_);
    sink_.hidden(layer, row, values);
  }
  void blocks(std::int64_t layer, std::int64_t row, std::int64_t head,
              std::span<const std::int32_t> ids, std::span<const float> scores) override {
    if (!tells_heads_) return;
    const std::lock_guard lock(mutex_);
    sink_.blocks(layer, row, shape_.first_kv_head + head, ids, scores);
  }
  void experts(std::int64_t layer, std::int64_t row, std::span<const std::int32_t> ids,
               std::span<const float> scores) override {
    if (shape_.rank != 0) return;
    const std::lock_guard lock(mutex_);
    sink_.experts(layer, row, ids, scores);
  }

 private:
  m3::TraceSink& sink_;
  std::mutex& mutex_;
  const m3::RankShape& shape_;
  const bool tells_heads_;
};

struct Rank {
  m3::RankShape shape;
  bool tells_heads = true;  // the first of the ranks that hold its KV heads
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<CachePool> pool;
  std::unique_ptr<Native> native;
  std::vector<float> logits;
  Status status;
};

class Ranked final : public Native {
 public:
  Ranked(std::unique_ptr<ThreadTeam> drivers, std::vector<std::unique_ptr<tp::Group>> groups)
      : drivers_(std::move(drivers)), groups_(std::move(groups)), ranks_(groups_.size()) {}

  ~Ranked() override {
    drivers_->each([&](int r) {
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      if (rank.native != nullptr) rank.status = rank.native->close();
      const Status closed = groups_[static_cast<std::size_t>(r)]->close();
      if (!closed.ok()) rank.status = closed;  // peers that failed are why; nothing left to do
    });
  }

  Status start(const m3::ModelConfig& config, const m3::ModelWeights& weights,
               const RankedOptions& options, const NativeOptions& native, int threads_each) {
    vocab_size_ = config.vocab_size;
    const auto size = static_cast<std::int64_t>(ranks_.size());
    for (std::int64_t r = 0; r < size; ++r) {
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      ML_ASSIGN_OR_RETURN(rank.shape, m3::rank_shape(config, r, size));
      rank.tells_heads = r == 0 || ranks_[static_cast<std::size_t>(r - 1)].shape.first_kv_head !=
                                       rank.shape.first_kv_head;
      ML_ASSIGN_OR_RETURN(rank.team, ThreadTeam::create({.threads = threads_each, .pin = false}));
      ML_ASSIGN_OR_RETURN(rank.pool, CachePool::create(m3::rank_config(config, rank.shape),
                                                       options.cache, options.pages));
    }
    // Creation is local: what the chain exchanges it exchanges in its steps.
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      NativeOptions mine = native;
      mine.group = groups_[r].get();
      ML_ASSIGN_OR_RETURN(ranks_[r].native, Native::create(config, weights, *ranks_[r].team, mine));
    }
    return {};
  }

  Status step(std::span<const StepSequence> sequences, CachePool& /*cache*/,
              std::vector<float>& logits, m3::TraceSink* sink) override {
    std::mutex mutex;
    drivers_->each([&](int r) {
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      if (sink == nullptr) {
        rank.status = rank.native->step(sequences, *rank.pool, rank.logits, nullptr);
        return;
      }
      RankSink mine(*sink, mutex, rank.shape, rank.tells_heads);
      rank.status = rank.native->step(sequences, *rank.pool, rank.logits, &mine);
    });
    last_ = {};
    for (const Rank& rank : ranks_) {
      ML_RETURN_IF_ERROR(rank.status);
      last_ += rank.native->last_traffic();
    }
    total_ += last_;
    logits = ranks_[0].logits;
    return {};
  }
  Status prepare_for(std::span<const StepSequence> largest, CachePool& /*cache*/) override {
    std::int64_t logit_rows = 0;
    for (const StepSequence& s : largest) logit_rows += s.logit_rows;
    drivers_->each([&](int r) {
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      rank.status = rank.native->prepare_for(largest, *rank.pool);
    });
    for (Rank& rank : ranks_) {
      ML_RETURN_IF_ERROR(rank.status);
      rank.logits.reserve(static_cast<std::size_t>(logit_rows * vocab_size_));
    }
    return {};
  }
  std::span<const std::int32_t> greedy_ids() const override {
    return ranks_[0].native->greedy_ids();
  }
  const Traffic& last_traffic() const override { return last_; }
  const Traffic& total_traffic() const override { return total_; }
  const PathCounts& paths() const override { return ranks_[0].native->paths(); }
  // The stream is the same on every rank; all of them stop at the same layers.
  Status capture(std::span<const std::int64_t> layers) override {
    for (const Rank& rank : ranks_) ML_RETURN_IF_ERROR(rank.native->capture(layers));
    return {};
  }
  std::span<const float> captured() const override { return ranks_[0].native->captured(); }

 private:
  std::unique_ptr<ThreadTeam> drivers_;  // one thread per rank
  std::vector<std::unique_ptr<tp::Group>> groups_;
  std::vector<Rank> ranks_;
  std::int64_t vocab_size_ = 0;
  Traffic last_, total_;
};

}  // namespace

Result<std::unique_ptr<Native>> make_ranked(const m3::ModelConfig& config,
                                            const m3::ModelWeights& weights,
                                            const RankedOptions& options,
                                            const NativeOptions& native) {
  ML_RETURN_IF_ERROR(m3::rank_shape(config, 0, options.ranks).status());
  ML_ASSIGN_OR_RETURN(auto groups, tp::make_thread_group(options.ranks));
  int threads = options.threads;
  if (threads == 0) {
    ML_ASSIGN_OR_RETURN(const auto probe, ThreadTeam::create({.threads = 0, .pin = false}));
    threads = probe->size();
  }
  ML_ASSIGN_OR_RETURN(auto drivers, ThreadTeam::create({.threads = options.ranks, .pin = false}));
  auto ranked = std::make_unique<Ranked>(std::move(drivers), std::move(groups));
  ML_RETURN_IF_ERROR(
      ranked->start(config, weights, options, native, std::max(1, threads / options.ranks)));
  return std::unique_ptr<Native>(std::move(ranked));
}

}  // namespace monolayer::cpu

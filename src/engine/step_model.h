// What the engine needs of a model: steps. The native chain is one; whatever replaces it for some
// steps plugs in behind this.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cpu/native.h"
#include "core/status.h"

namespace monolayer::engine {

class StepModel {
 public:
  virtual ~StepModel() = default;
  // As cpu::Native::step(): writes the rows' cache entries, returns the logits of each sequence's
  // last logit_rows rows, in order, greedy sequences left out. Nothing is written when the step is
  // refused.
  virtual Status step(std::span<const cpu::StepSequence> sequences, std::vector<float>& logits) = 0;
  // Whether it can choose the likeliest tokens itself: cpu::StepSequence::greedy may be set then.
  virtual bool chooses_greedily() const { return false; }
  // As cpu::Native::greedy_ids().
  virtual std::span<const std::int32_t> greedy_ids() const { return {}; }
  // As cpu::Native::prepare_for().
  virtual Status prepare_for(std::span<const cpu::StepSequence> /*largest*/) { return {}; }
  virtual std::int64_t vocab_size() const = 0;
  virtual std::int64_t blocks() const = 0;
  // States of the target's layers that a draft reads, of all rows of the last step; empty where
  // none was asked for.
  virtual std::span<const float> kept() const { return {}; }
  // Makes the content of a block that nobody may read into values no result survives (tests).
  virtual void poison(std::int32_t) {}
};

class NativeModel : public StepModel {
 public:
  // Borrows everything. `still_valid`, if given, is asked after every step: where it fails, nothing
  // of the step may be shown (weights used from a mapping: a file cut inside its last page reads as
  // zeros there).
  NativeModel(const m3::ModelConfig& config, cpu::Native& native, cpu::CachePool& pool,
              std::function<Status()> still_valid = nullptr)
      : config_(config), native_(native), pool_(pool), still_valid_(std::move(still_valid)) {}

  Status step(std::span<const cpu::StepSequence> sequences, std::vector<float>& logits) override {
    ML_RETURN_IF_ERROR(native_.step(sequences, pool_, logits, nullptr));
    return still_valid_ ? still_valid_() : ok_status();
  }
  Status prepare_for(std::span<const cpu::StepSequence> largest) override {
    return native_.prepare_for(largest, pool_);
  }
  bool chooses_greedily() const override { return true; }
  std::span<const std::int32_t> greedy_ids() const override { return native_.greedy_ids(); }
  std::int64_t vocab_size() const override { return config_.vocab_size; }
  std::int64_t blocks() const override { return pool_.pages(); }
  std::span<const float> kept() const override { return native_.captured(); }

  // All bits set is a NaN in BF16 and in E4M3.
  void poison(std::int32_t block) override {
    if (!pool_.has_memory()) return;
    for (std::int64_t i = 0; i < pool_.layers(); ++i) {
      const auto kv_bytes = kv_page_bytes();
      const auto at = static_cast<std::size_t>(block);
      std::memset(pool_.layer(i).k + at * kv_bytes, 0xff, kv_bytes);
      std::memset(pool_.layer(i).v + at * kv_bytes, 0xff, kv_bytes);
      if (pool_.layer(i).index == nullptr) continue;
      const auto index_bytes = static_cast<std::size_t>(m3::kPageTokens * config_.index_dim) *
                               (pool_.options().index == DType::kE4M3 ? 1U : 2U);
      std::memset(pool_.layer(i).index + at * index_bytes, 0xff, index_bytes);
    }
  }

 private:
  std::size_t kv_page_bytes() const {
    return static_cast<std::size_t>(config_.num_kv_heads * m3::kPageTokens * config_.head_dim) *
           (pool_.options().kv == DType::kE4M3 ? 1U : 2U);
  }

  const m3::ModelConfig& config_;
  cpu::Native& native_;
  cpu::CachePool& pool_;
  const std::function<Status()> still_valid_;
};

}  // namespace monolayer::engine

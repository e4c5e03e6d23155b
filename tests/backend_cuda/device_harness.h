// Runs sequences through a chain on a device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/native.h"
#include "backend_cpu/native_harness.h"
#include "backend_cpu/random_model.h"

namespace monolayer::test {

inline bool no_device() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
}

struct DeviceOutput {
  std::vector<float> logits;  // of every row
  Recorder trace;
};

class Device {
 public:
  Device(const m3::ModelConfig& config, const m3::ModelWeights& weights,
         const cpu::CacheOptions& cache, const cuda::NativeOptions& options)
      : config_(config) {
    auto pool = cpu::CachePool::create(config, cache, 64);
    EXPECT_TRUE(pool.ok());
    pool_ = std::move(pool).value();
    auto native = cuda::create_native(config, weights, options);
    EXPECT_TRUE(native.ok()) << native.status().to_string();
    if (native.ok()) native_ = std::move(native).value();
  }
  cpu::Native& native() { return *native_; }
  cpu::CachePool& pool() { return *pool_; }

  DeviceOutput run(const std::vector<std::int32_t>& tokens, const std::vector<std::int64_t>& chunks,
                   bool traced, std::int32_t page_step = 1) {
    DeviceOutput out;
    const auto pages = page_table(static_cast<std::int64_t>(tokens.size()), 0, page_step);
    std::int64_t at = 0;
    const auto total = static_cast<std::int64_t>(tokens.size());
    for (std::size_t i = 0; at < total; ++i) {
      const std::int64_t n = std::min(chunks[std::min(i, chunks.size() - 1)], total - at);
      cpu::StepSequence sequence{.tokens = std::span<const std::int32_t>(tokens).subspan(
                                     static_cast<std::size_t>(at), static_cast<std::size_t>(n)),
                                 .start = at,
                                 .pages = pages,
                                 .logit_rows = n};
      std::vector<float> logits;
      const Status status =
          native_->step({&sequence, 1}, *pool_, logits, traced ? &out.trace : nullptr);
      EXPECT_TRUE(status.ok()) << status.to_string();
      if (!status.ok()) return out;
      out.logits.insert(out.logits.end(), logits.begin(), logits.end());
      at += n;
    }
    return out;
  }

 private:
  const m3::ModelConfig& config_;
  std::unique_ptr<cpu::CachePool> pool_;
  std::unique_ptr<cpu::Native> native_;
};

// As many random tokens, none the same as the own one at its place.
inline std::vector<std::int32_t> other_tokens(const m3::ModelConfig& config,
                                              const std::vector<std::int32_t>& own,
                                              std::uint64_t seed) {
  auto tokens = random_tokens(config, static_cast<std::int64_t>(own.size()), seed);
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (tokens[i] == own[i]) tokens[i] = own[i] + 1 < config.vocab_size ? own[i] + 1 : 0;
  }
  return tokens;
}

}  // namespace monolayer::test

// Chains over random weights that are made on the device, for benches and tests: full size needs
// neither files nor host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/cpu/native.h"
#include "backend/cuda/native.h"
#include "core/status.h"
#include "m3/config.h"

namespace monolayer::cuda {

// MiniMax-M3 with this many dense and sparse layers, dense ones first.
m3::ModelConfig m3_config(std::int64_t dense_layers, std::int64_t sparse_layers);
// Caches as the kernels for M3 want them, with scales for random contents.
cpu::CacheOptions m3_caches();

struct RandomOptions {
  std::uint64_t seed = 1;  // of weights, and of what the caches hold when they are made
  // Above 1: the share of rank 0 of so many, with all exchanges: it writes to its own mailbox what
  // all of them would write to it. Every shard of the logits is then a copy of its own.
  int stand_in = 1;
  bool f32_router = false;  // instead of BF16
};

class BenchChain : public cpu::Native {
 public:
  enum class Part : std::uint8_t {
    kStep,   // everything, and the likeliest token of each row
    kLayers  // the layers that can be fused
  };
  // Uploads a step of at most 16 rows that time() then repeats.
  virtual Status load(std::span<const cpu::StepSequence> sequences, cpu::CachePool& cache) = 0;
  // Seconds on the device, from a graph.
  virtual Result<double> time(Part part, bool fused) = 0;
  // A digest of what the last time() left: hidden states, and tokens after Part::kStep.
  virtual Result<std::uint64_t> digest() = 0;
  // Bytes a second of plain loads over the experts of one layer, another one each time.
  virtual Result<double> stream() = 0;

  // Packed bytes.
  struct Bytes {
    std::int64_t sparse_layer = 0;  // without routed experts
    std::int64_t expert = 0;
    std::int64_t dense_layer = 0;
    std::int64_t head = 0;
    std::int64_t all = 0;
  };
  virtual Bytes weight_bytes() const = 0;
  // Of the device, beside what a pool's pages take.
  virtual Result<std::int64_t> free_bytes() const = 0;
  // What every page of a pool of such caches takes.
  virtual std::int64_t page_bytes(const cpu::CacheOptions& caches) const = 0;
  virtual bool m3_kernels() const = 0;
};

// E4M3 for attention and dense layers, MXFP4 for experts, BF16 for router, embedding and head.
// Errors as create_native(). Ranks of a group get the same numbers of the same seed, so that they
// agree on norms and routers.
Result<std::unique_ptr<BenchChain>> create_random(const m3::ModelConfig& config,
                                                  const RandomOptions& random,
                                                  const NativeOptions& options);

}  // namespace monolayer::cuda

// The memory of one step: every buffer a stage reads or writes, with its shape.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/cpu/buffer.h"
#include "backend/cpu/cache.h"
#include "backend/cpu/model_view.h"
#include "backend/cpu/native.h"
#include "backend/cpu/partition.h"
#include "backend/cpu/split.h"
#include "backend/cpu/step_plan.h"
#include "backend/cpu/tiles.h"
#include "m3/config.h"

namespace monolayer::cpu {

// All are float32; "BF16" means that the values have been rounded to BF16.
struct Activations {
  Buffer<float> hidden;                              // [rows, hidden] BF16, the residual stream
  Buffer<float> normed;                              // [rows, hidden] BF16
  std::array<Buffer<float>, kActivationKinds> rows;  // [rows, padded hidden], normed and permuted
  Buffer<float> rope;                                // [rows, rotary_dim]: cosines, then sines
  Buffer<float> projected;                           // [rows, q | k | v | index q | index k]
  Buffer<float> q;                                   // [kv_head, rows, group, padded head_dim] BF16
  Buffer<float> index_q;                             // [rows, index_heads, padded index_dim] BF16
  Buffer<float> attended;                            // [rows, split layout of o] BF16
  Buffer<float> router_logits;                       // [rows, experts]
  Buffer<float> roots;  // [rows, hidden], a rank's share of a split sum
  Buffer<float> mlp;    // [slots, split layout of down] BF16
  std::array<Buffer<float>, kActivationKinds> gathered;  // [slots, padded hidden]

  Buffer<float> block_scores;        // [rows of a slab, index_heads, blocks]
  Buffer<std::int32_t> block_ids;    // [rows, index_heads, topk] ascending
  Buffer<float> attention_partials;  // [units of a wave, tile rows, group, head_dim + 2]
  Buffer<float> attention_state;     // [rows, heads, head_dim + 2]

  // Every buffer becomes the other's, which stays its owner.
  void borrow(const Activations& other);
};

// What one worker needs for itself.
struct WorkerScratch {
  Buffer<float> floats;
  std::vector<std::int32_t> ids;         // of blocks; capacity reserved before use
  std::vector<std::uint64_t> likeliest;  // of this worker's part of the vocabulary, a key a row
  Traffic traffic;
};

// Everything a stage sees of the step; stages write `act` and the caches, nothing else.
struct StepContext {
  const m3::ModelConfig& config;
  const Tiles& tiles;
  const StepPlan& plan;
  const Caches& cache;
  Activations& act;
  std::int64_t row_tile;        // rows of one matmul call
  std::int64_t parts = kParts;  // eighths of a split dimension that this rank holds
};

}  // namespace monolayer::cpu

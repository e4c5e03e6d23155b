// The EAGLE3 draft on the CPU: its one layer from the native chain's stages, for any mix of prompt
// and decode rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cpu/native.h"
#include "backend/cpu/thread_team.h"
#include "backend/cpu/tiles.h"
#include "core/status.h"
#include "m3/draft.h"
#include "m3/weights.h"

namespace monolayer::cpu {

// New rows of one sequence: a token, and the hidden state of the position before it. The entry of
// the token at place t (rotary position t - 1) lies in slot t of the draft's cache, so that a block
// of entries depends on no token after the block; place 0 has no entry.
struct DraftSequence {
  std::span<const std::int32_t> tokens;  // at places start, start + 1, ... ; start >= 1
  std::int64_t start = 0;                // entries of places 1 to start - 1 are in the cache
  std::span<const std::int32_t> pages;
  const float* hidden = nullptr;  // [tokens, hidden_size], BF16 values
  bool proposes = false;          // guess the token after the last one
};

// The guess of one sequence, in target ids, and the state it is carried on with.
struct Proposal {
  std::int32_t token = 0;
  std::vector<float> hidden;
};

class Draft {
 public:
  // Borrows everything. `target` gives the embedding or head the draft's file leaves out, which
  // must be BF16 then (kUnsupported naming the tensor).
  static Result<std::unique_ptr<Draft>> create(const m3::DraftConfig& config,
                                               const m3::DraftWeights& weights,
                                               const m3::ModelConfig& target_config,
                                               const m3::ModelWeights& target, ThreadTeam& team,
                                               const Tiles* tiles = nullptr);
  virtual ~Draft() = default;

  // What a CachePool of the draft's entries is made for.
  static m3::ModelConfig cache_shape(const m3::DraftConfig& config,
                                     const m3::ModelConfig& target_config);

  // out[row] = fc(concat of the three normed states), BF16 values. `kept`: [rows, 3, hidden_size]
  // as Native::captured().
  virtual Status combine(std::span<const float> kept, float* out) = 0;
  // Writes the rows' entries; one proposal per sequence that proposes, in order. Validated like a
  // step of the native chain; a row's bits depend on nothing but its own sequence. Non-finite
  // logits are kInternal.
  virtual Status step(std::span<const DraftSequence> sequences, CachePool& cache,
                      std::vector<Proposal>& proposals) = 0;
  // Makes the memory of steps of so many rows, `proposals` of which propose. Smaller ones then take
  // none that is not returned at their end.
  virtual Status prepare_for(std::int64_t rows, std::int64_t proposals, CachePool& cache) = 0;
  // The logits behind the last step's proposals, [proposals, draft_vocab_size]; from a device only
  // where that was asked for, otherwise none.
  virtual std::span<const float> logits() const = 0;
  virtual const Traffic& total_traffic() const = 0;
};

}  // namespace monolayer::cpu

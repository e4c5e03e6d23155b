// The whole text model in plain float32: obvious rather than fast, the oracle of everything else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/status.h"
#include "m3/config.h"
#include "m3/rope.h"
#include "m3/trace.h"
#include "m3/weights.h"

namespace monolayer::m3 {

// One sequence. Float32 arithmetic on exactly decoded weights, no rounding between operations,
// float32 caches. Any chunking of forward() calls gives the same values.
class Reference {
 public:
  // Borrows both. Weights are decoded to float32 when first used and kept if all of them fit in
  // 1 GiB; those of a larger model are decoded again in every forward(), one layer at a time.
  // `rotary`: angles that replace those of rope_theta; must cover every position.
  Reference(const ModelConfig& config, const ModelWeights& weights, const RotaryTable& rotary = {});
  ~Reference();

  // Appends `tokens` at the current position. Returns logits of the last `logit_rows` of them,
  // [logit_rows, vocab] row-major (logit_rows <= tokens.size()). `sink` may be null.
  // Errors: no tokens, token id out of range, position beyond max_positions, out of memory; nothing
  // is appended then.
  Result<std::vector<float>> forward(std::span<const std::int32_t> tokens, std::int64_t logit_rows,
                                     TraceSink* sink);
  std::int64_t position() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace monolayer::m3

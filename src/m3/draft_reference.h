// The draft in plain float32: obvious rather than fast, what the fast forward is compared with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "m3/draft.h"
#include "m3/weights.h"

namespace monolayer::m3 {

// One sequence. No rounding between operations, float32 caches.
class DraftReference {
 public:
  // Borrows everything; `target` gives the embedding or head that the draft's file leaves out.
  DraftReference(const DraftConfig& config, const DraftWeights& weights,
                 const ModelWeights& target);
  ~DraftReference();

  // fc(concat(rms(a_0), rms(a_1), rms(a_2))) of one row; `aux` [3 * hidden].
  std::vector<float> combine(std::span<const float> aux) const;

  struct Output {
    std::vector<float> hidden;  // carried on, after the final norm
    std::vector<float> logits;  // [draft_vocab_size]
  };
  // The row of `token` with the hidden state of the position before it; `position` is that
  // position. Cache entries at `position` and after are dropped first.
  Output step(std::int32_t token, std::span<const float> hidden, std::int64_t position);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace monolayer::m3

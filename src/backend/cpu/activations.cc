#include "backend/cpu/activations.h"

namespace monolayer::cpu {

void Activations::borrow(const Activations& other) {
  hidden.borrow(other.hidden);
  normed.borrow(other.normed);
  rope.borrow(other.rope);
  projected.borrow(other.projected);
  q.borrow(other.q);
  index_q.borrow(other.index_q);
  attended.borrow(other.attended);
  router_logits.borrow(other.router_logits);
  roots.borrow(other.roots);
  mlp.borrow(other.mlp);
  for (std::size_t kind = 0; kind < kActivationKinds; ++kind) {
    rows[kind].borrow(other.rows[kind]);
    gathered[kind].borrow(other.gathered[kind]);
  }
  block_scores.borrow(other.block_scores);
  block_ids.borrow(other.block_ids);
  attention_partials.borrow(other.attention_partials);
  attention_state.borrow(other.attention_state);
}

}  // namespace monolayer::cpu

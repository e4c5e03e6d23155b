// One sequence in the engine: its tokens, how far they are computed, and where its caches lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/block_manager.h"

namespace monolayer::engine {

enum class SequenceState : std::uint8_t {
  kWaiting,  // no blocks; new, or preempted
  kPrefill,  // has blocks; more than one token is still to be computed
  kDecode,   // only the newest token is to be computed
  kFinished,
};

// How far the draft has followed a sequence.
struct DraftState {
  std::int64_t done = 0;      // its entries of places before this are complete; 0: not begun
  std::vector<float> hidden;  // states of positions from done - 1 on, of those that are computed
  bool off = false;           // it gave no numbers: not used for this sequence any more
};

struct Sequence {
  std::uint64_t id = 0;
  std::vector<std::int32_t> tokens;  // prompt, then what was generated
  std::int64_t prompt_tokens = 0;
  std::int64_t computed = 0;       // tokens whose cache entries are complete
  std::int64_t most_tokens = 0;    // prompt and output together, at the most
  std::int64_t cached_tokens = 0;  // taken from the prefix cache when first admitted
  std::int64_t preemptions = 0;
  bool admitted_before = false;
  bool use_prefix_cache = true;    // look-ups; what it computes is findable all the same
  std::int64_t largest_chunk = 0;  // rows of one step; 0: what the step holds
  bool all_logits = false;         // logits of every prompt row, not only of the last
  // Waits until that sequence has computed its prompt, to share its blocks; 0: nobody.
  std::uint64_t after = 0;
  std::string cache_salt;
  SequenceState state = SequenceState::kWaiting;
  BlockTable table;
  DraftState draft;

  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t remaining() const { return size() - computed; }
  std::int64_t generated() const { return size() - prompt_tokens; }
};

}  // namespace monolayer::engine

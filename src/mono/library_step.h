// Request metadata of one step, checked and expanded to rows.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/status.h"
#include "mono/executor.h"
#include "monolayer/monolayer.h"

namespace monolayer::mono {

struct StepLimits {
  std::int64_t blocks = 0, index_blocks = 0;  // capacities of the caches
  std::int64_t max_context = 0;               // tokens of one request
};

// The rows of a step, in a place of its own so that a refused step leaves the last one alone.
struct ExpandedStep {
  std::array<StepRow, kMaxRows> rows;
  std::int64_t count = 0;
  std::span<const StepRow> view() const { return {rows.data(), static_cast<std::size_t>(count)}; }
};

// Copies the caller's struct whatever its size field says. kInvalidArgument naming both sizes.
Status read_step(const ml_step* step, ml_step& out);

// Row t of request r (its j-th of q) is live iff seq_lens[r] >= q and both its slots are >= 0; it
// then sees keys 0 .. seq - q + j. Rows past the last request are padding. Host memory only.
// kInvalidArgument naming request or row, value and bound: counts, query and sequence lengths,
// table width, block ids of used entries, slots within the cache, the slot that the table gives the
// row's position, a slot written by two rows, a padded row between live ones of a request.
// Allocates nothing unless it refuses.
Status expand_step(const ml_step& step, const StepLimits& limits, ExpandedStep& out);

}  // namespace monolayer::mono

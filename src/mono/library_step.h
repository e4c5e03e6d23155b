// Request metadata of one step, checked and expanded to rows.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/prefetch.h"
#include "core/status.h"
#include "mono/executor.h"
#include "monolayer/monolayer.h"

namespace monolayer::mono {

struct StepLimits {
  std::int64_t blocks = 0, index_blocks = 0;  // capacities of the caches
  std::int64_t max_context = 0;               // tokens of one request
};

// The rows of a step, in a place of its own so that a refused step leaves the last one alone.
struct alignas(kCacheLine) ExpandedStep {
  std::int64_t count = 0;
  std::array<std::int64_t, kMaxRows> positions;  // of the rows, -1 where one is not live
  std::array<StepRow, kMaxRows> rows;
  // Of its beginning, which so many rows take.
  std::size_t bytes(std::int64_t row_count) const {
    return sizeof *this - sizeof(StepRow) * static_cast<std::size_t>(kMaxRows - row_count);
  }
  std::span<const StepRow> view() const { return {rows.data(), static_cast<std::size_t>(count)}; }
};

// What is wrong with a step, in numbers; step_refusal() has the words.
enum class StepFault : std::uint8_t {
  kNone,
  kTokenCount,
  kRequests,
  kQueryLength,
  kArrays,
  kRequestRows,    // value: rows of request `at`
  kRows,           // value: rows of the requests up to `at`
  kLength,         // value: tokens of request `at`
  kTableWidth,     // value: tokens of request `at`
  kTableEntry,     // of request `at`
  kNegativeSlot,   // value: slot of row `at`
  kPaddingAmid,    // value: request of row `at`
  kSlotBeyond,     // value: slot of row `at`
  kSlotElsewhere,  // value: slot of row `at`
  kWrittenTwice,   // value: the row before `at` with the same slot
};
struct StepFinding {
  StepFault fault = StepFault::kNone;
  bool index = false;  // the index cache's table or slots
  std::int64_t at = 0, value = 0;
  bool none() const { return fault == StepFault::kNone; }
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
// The same without words: takes no memory at all.
StepFinding examine_step(const ml_step& step, const StepLimits& limits, ExpandedStep& out);
// True where examine_step() finds nothing, and then `out` is the same; false also of some steps
// that are in order: those with padding inside a request. What nearly every step goes through, in
// few instructions and fewer branches, for a processor that has forgotten both.
bool take_step(const ml_step& step, const StepLimits& limits, ExpandedStep& out);
// `found` of such a step, in words.
Status step_refusal(const ml_step& step, const StepLimits& limits, const ExpandedStep& rows,
                    const StepFinding& found);

}  // namespace monolayer::mono

// What a block of the kernels for MiniMax-M3 does in the stage of heads: the same in every layer of
// a launch, so it is planned before the first (device/head_plan.cuh) and kept in shared memory.
#pragma once

#include <cstdint>

#include "backend/cuda/params.h"

namespace monolayer::cuda {

// One head of one row: 128 columns of the projections, what norms them, where they go.
struct alignas(16) HeadJob {
  std::int32_t from;       // first of its columns
  std::int32_t to;         // 128s: of entries of its cache; values: of Params::q or index queries
  std::uint16_t norm_at;   // of the pointer to its norm, in Layer; 0: none
  std::uint16_t cache_at;  // of that to its cache, in Layer; 0: a query
  std::uint16_t scale_at;  // of its cache's scale, in Shape
  std::int8_t row;
  bool index;  // an index query
};
static_assert(sizeof(HeadJob) == 16);

// Of a rank; with fewer its jobs would not fit.
inline constexpr int kLeastM3Blocks = 32;
// Most jobs of a block: its share of 16 rows of 72 heads, four index queries of two rows, and the
// index keys of all rows.
inline constexpr int kMaxHeadJobs = 64;
static_assert((kMaxRows * 72 + kLeastM3Blocks - 1) / kLeastM3Blocks + 2 * 4 + kMaxRows <=
              kMaxHeadJobs);

struct HeadPlan {
  std::int32_t jobs;
  // This block's tasks of index scores, of the rows from first_row on.
  std::int32_t begin, end, first_row;
  std::int32_t row[kWarps], group[kWarps];  // of each warp's first task
  // Where the index keys of each warp's first tasks lie; -1: no such task, or keys that are not
  // there before this step's are made.
  std::int64_t keys[kWarps][kMostKeyBuffers];
  HeadJob job[kMaxHeadJobs];
};

}  // namespace monolayer::cuda

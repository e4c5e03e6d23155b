// The indexer of a sparse layer: block scores and the choice of blocks.
#pragma once

#include <span>
#include <vector>

#include "backend/cpu/activations.h"
#include "backend/cpu/partition.h"
#include "m3/trace.h"

namespace monolayer::cpu {

// A part of the step's rows whose scores are held at once: rows x index heads x blocks floats.
struct ScoreSlab {
  Range rows;
  std::int64_t blocks = 0;  // stride of one (row, head)
  float* at(const StepContext& step, std::int64_t row, std::int64_t head) const {
    return step.act.block_scores.data() +
           ((row - rows.begin) * step.config.index_heads + head) * blocks;
  }
};

// Rows from `begin` on whose scores fit in the budget; at least one row.
ScoreSlab next_score_slab(const StepContext& step, std::int64_t begin);

// Floats of the largest slab of a step of `rows` rows with at most so many blocks.
std::int64_t score_floats(const m3::ModelConfig& config, std::int64_t rows, std::int64_t blocks);

// One piece of scoring work: a tile of rows against one page of index keys.
struct ScoreTile {
  RowTile tile;
  std::int64_t pages = 0;
};

// Tiles of the slab's rows. Rows that select every block need no scores and are left out unless
// `all`.
std::vector<ScoreTile> score_tiles(const StepContext& step, const ScoreSlab& slab, bool all);
// Units of item i: the pages of tile i.
WorkList score_work(const StepContext& step, const std::vector<ScoreTile>& tiles);

// Largest dot product of each block of pages [pages) with each index query of the tile; only keys
// up to a row's own position count. `scratch`: score_scratch() floats.
void score_pages(const StepContext& step, std::int64_t layer, const ScoreSlab& slab,
                 const RowTile& tile, Range pages, float* scratch, Traffic& traffic);
std::int64_t score_scratch(const m3::ModelConfig& config);

// Chosen block ids, ascending, of (row, head) pairs [begin, end) counted from the slab's first row.
// `scratch` must have room for slab.blocks ids.
void select_blocks(const StepContext& step, const ScoreSlab& slab, Range pairs,
                   std::vector<std::int32_t>& scratch);

// Lets `choices` overrule the slab's choices.
void follow_blocks(const StepContext& step, const ScoreSlab& slab, std::int64_t layer,
                   m3::ChoiceSource& choices);

// Reports the slab's choices and scores, in the keys' own units.
void trace_blocks(const StepContext& step, const ScoreSlab& slab, std::int64_t layer,
                  m3::TraceSink& sink);

// Blocks that exist for a row, and how many of them it attends to.
std::int64_t existing_blocks(const m3::ModelConfig& config, std::int64_t position);
std::int64_t selected_blocks(const m3::ModelConfig& config, std::int64_t position);

}  // namespace monolayer::cpu

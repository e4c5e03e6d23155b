// Attention over pages in chunks of keys; dense layers read every page, sparse ones only the
// selected blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/activations.h"
#include "backend/cpu/partition.h"
#include "backend/cpu/split.h"

namespace monolayer::cpu {

// A chunk is what one softmax runs over: the keys of one page on dense layers, those of one
// selected block (never more than a page) on sparse ones. A unit is one chunk for one KV head and a
// tile of rows; it leaves (maximum, sum, weighted values) per query head. Units are numbered tile
// by tile in ascending chunk order and run in waves, so that what they leave stays bounded; after
// each wave its units are merged into the rows' running state in ascending order.
struct AttentionTile {
  RowTile rows;
  std::int64_t kv_head = 0;
  std::int64_t chunks = 0;
  std::int64_t first_unit = 0;
};

struct AttentionPlan {
  bool sparse = false;
  std::int64_t tile_rows = 1;  // rows of one tile at most
  std::int64_t first_key = 0;  // dense: keys before it exist for nobody
  std::int64_t units = 0;
  std::int64_t wave = 1;  // units of one wave at most
  std::vector<AttentionTile> tiles;
  std::int64_t partial_floats = 0;  // of one unit
};

// Of unit results held at once; one unit may be larger.
inline constexpr std::int64_t kWaveFloats = 4 << 20;

// Rows of one tile at most: rows of a sparse layer choose their own blocks, so they share no
// reading.
std::int64_t attention_tile_rows(const m3::ModelConfig& config, bool sparse);

AttentionPlan plan_attention(const StepContext& step, bool sparse);

// Runs units [begin, end) of the wave that starts at `wave_begin`. `scratch`: attention_scratch().
void attend_units(const StepContext& step, const AttentionPlan& plan, std::int64_t layer,
                  std::int64_t wave_begin, Range units, float* scratch, Traffic& traffic);
std::int64_t attention_scratch(const StepContext& step, const AttentionPlan& plan);

// Query heads (row x head in group) that units [wave) touched, in the order of the plan.
std::int64_t merge_pairs(const StepContext& step, const AttentionPlan& plan, Range wave);
// Merges the wave's units for pairs [begin, end) and, where the last chunk is in, writes the
// finished BF16 output into `attended`. `scratch`: head_dim floats.
void merge_units(const StepContext& step, const AttentionPlan& plan, std::int64_t layer,
                 const SplitLayout& layout, Range wave, Range pairs, float* scratch);

}  // namespace monolayer::cpu

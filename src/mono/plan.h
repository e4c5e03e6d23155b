// What one layer of one step consists of: stages, the tasks of each worker, the bytes they stream,
// the waits between workers, and the regions of memory that stages hand to each other.
//
// A plan is plain host data, the same for every executor: the resident team, the serial
// interpreter, the contract checker (plan_check.h) and the picture of a step read it. It depends on
// the layer's shape, the step's rows and the number of workers, never on values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace monolayer::mono {

enum class Stage : std::uint8_t {
  kInputNorm,  // stream (plus the caller's hidden) -> normed rows
  kProject,    // normed rows -> q, k, v, index q, index k columns
  kHeads,      // norms and rotation of heads; keys and values into the caches
  kScore,      // index queries x index keys: best score of each block
  kSelect,     // the blocks a (row, index head) attends to
  kAttend,     // units: one chunk of keys for the query heads of one KV head
  kMerge,      // chunks of a query head, in ascending order
  kOutput,     // output projection, exchange between ranks, into the stream
  kPostNorm,   // stream -> normed rows
  kRouter,     // router logits
  kRoute,      // experts of every row
  kGateUp,     // activations of the chosen experts, of the shared one, or of the dense MLP
  kDown,       // down projections, exchange between ranks, into the stream or the caller's hidden
};
inline constexpr int kStages = 13;
std::string_view stage_name(Stage stage);

enum class Region : std::uint8_t {
  kStream,       // by column
  kNormed,       // by row; each worker's own where the norm is repeated by every worker
  kProjected,    // by column: q | k | v | index q | index k
  kHeads,        // by head, in that order: queries in memory, keys and values in the caches
  kScores,       // by scoring unit: a page for a tile of rows
  kSelections,   // by (row, index head); each worker's own
  kPartials,     // by attention unit of a wave
  kMergeState,   // by merge pair: (attention part, query head of the part)
  kAttended,     // by merge pair
  kLogits,       // by expert
  kRoutes,       // one; each worker's own
  kActivations,  // by share of the MLP's work
};
inline constexpr int kRegions = 12;
std::string_view region_name(Region region);

struct Extent {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
};

// A part of a stage's work on one worker. Units of a list (projections, score tiles) are counted
// through all of its items.
struct Task {
  std::int16_t worker = 0;
  Extent units;
  std::int64_t bytes = 0;  // streamed: weights and cached keys and values
};

// Before its tasks of a step a worker waits until `worker` has left step number `step` of the
// layer; -1: the last step of the layer before.
struct Wait {
  std::int16_t worker = 0;
  std::int16_t step = 0;
};

struct Access {
  Region region;
  Extent units;
};

struct PlanStep {
  Stage stage{};
  std::int64_t units = 0;
  bool repeated = false;                 // several workers may do the same unit, each for itself
  std::int64_t first_unit = 0;           // kAttend and kMerge: where the wave begins
  std::vector<Task> tasks;               // by ascending worker
  std::vector<std::vector<Wait>> waits;  // [worker]
  // What each task reads and writes, parallel to `tasks`.
  std::vector<std::vector<Access>> reads, writes;
};

struct RegionPlace {
  bool per_worker = false;  // every worker has its own, `bytes` apart
  std::int64_t units = 0;   // of this step
  std::int64_t offset = 0;  // in the executor's memory; unused if bytes is 0
  std::int64_t bytes = 0;   // of one copy, for the largest step: a multiple of kRegionAlign
  std::int64_t needed = 0;  // by this step, at most `bytes`

  std::int64_t copy(int worker) const { return offset + (per_worker ? worker * bytes : 0); }
};
inline constexpr std::int64_t kRegionAlign = 256;

struct LayerPlan {
  bool sparse = false, moe = false;
  std::int64_t rows = 0;
  int workers = 1;
  std::vector<PlanStep> steps;
  std::array<RegionPlace, kRegions> regions;
  std::int64_t memory = 0;  // bytes of all regions

  // Bytes that the layer's tasks stream.
  std::int64_t bytes() const;
  const RegionPlace& place(Region region) const {
    return regions[static_cast<std::size_t>(region)];
  }
};

// Items with a cost per unit, cut into shares of equal cost at multiples of `align` units.
struct WorkItem {
  std::int64_t units = 0;
  std::int64_t cost = 0;   // of a unit, for the balance
  std::int64_t bytes = 0;  // of a unit, for the account
};

// Rows that one reading of keys serves, for one KV head.
struct AttentionPart {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t kv_head = 0;
  std::int64_t chunks = 0;  // units
};
struct ScorePart {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t pages = 0;  // units
};

// Everything a plan is made of. Sizes count one rank's share.
struct PlanInput {
  bool sparse = false, moe = false;
  int workers = 1;
  std::int64_t rows = 0, hidden = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t index_heads = 0, index_dim = 0, topk = 0;
  std::array<WorkItem, 5> projections;  // q, k, v, index q, index k: rows of each
  WorkItem output, router;              // output rows; experts
  // The MLP's work if it is known: groups of gate and up rows. With experts it is known only after
  // routing; then these are one typical choice and shares are taken again at run time.
  std::vector<WorkItem> gate_up;
  WorkItem down;  // output rows, bytes of all groups
  std::vector<ScorePart> scores;
  std::vector<AttentionPart> attention;
  std::int64_t score_bytes = 0;     // of a scoring unit
  std::int64_t attend_bytes = 0;    // of an attention unit
  std::int64_t wave_units = 1;      // attention units whose partial results are held at once
  std::int64_t pairs_per_part = 1;  // merge pairs of an attention part: tile rows x group
  // Bytes of a region for this step and for the largest step, by Region; 0: not in memory of the
  // executor.
  std::array<std::int64_t, kRegions> needed{}, largest{};
};

// From this many rows on, workers share the norms instead of repeating them.
std::int64_t repeated_norm_rows(int workers);

LayerPlan make_plan(const PlanInput& input);

// Stages, tasks, waits and regions as JSON, for people.
std::string plan_json(const LayerPlan& plan);

}  // namespace monolayer::mono

// What host and device share: plain data, borrowed device pointers. BF16 values are bit patterns
// in std::uint16_t; every shape is stated where it is declared.
#pragma once

#include <cstdint>

#include "backend/cuda/mailbox.h"
#include "backend/cuda/words.h"

namespace monolayer::cuda {

inline constexpr int kMaxRows = 16;  // rows of one step of the kernels
inline constexpr int kColumns = 8;   // activation columns of one pass over a matrix
inline constexpr int kWarps = 16;    // that compute
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kFeeders = 2;  // warps that feed them, each every other slot of the ring
inline constexpr int kBlockThreads = kThreads + kFeeders * 32;
inline constexpr int kMaxExperts = 128;
inline constexpr int kMaxChosen = 8;  // experts of a row
inline constexpr int kMaxHidden = 6144;
inline constexpr int kMaxRotary = 128;
inline constexpr int kMaxTopBlocks = 32;
inline constexpr int kSlotBytes = 12 * 544;  // a slot of the ring: one copy
inline constexpr int kMaxSlots = 32;  // of the ring at most; each has a lane of a feeding warp
inline constexpr int kProjectionParts = 8;  // of the projections' K
inline constexpr int kRouterParts = 16;     // of a router's K

inline constexpr int kPageTokens = 128;

// Where dynamic shared memory begins: behind what the system keeps of it.
inline constexpr unsigned kSharedBase = 1024;

static_assert(kMailRows == kMaxRows, "a place in the mailbox for every row of a step");

// Columns kept of a sum, and sums of (row group, part) that meet at once, in steps of `rows` rows.
inline constexpr int red_columns(int rows) { return rows > 4 ? 8 : rows > 2 ? 4 : 2; }
inline constexpr int red_entries(int rows) { return rows > 1 ? 16 : 32; }
// Bytes of a slot's sums of a row group and one part of down.
inline constexpr int kDownSums = 16 * 4;

enum class Format : std::int32_t {
  kBF16,      // tile: 16 rows x 32 columns, 1024 bytes
  kF32,       // three BF16 planes whose sum is exact, three tiles for the same columns
  kE4M3,      // 16 x 32, 512 bytes; one float32 factor per row
  kMXFP4,     // 16 x 64, 512 bytes and 32 of E8M0 scales
  kMXFP8,     // 16 x 32, 512 bytes and 16 of E8M0 scales
  kE4M3Half,  // E4M3 whose activations are staged as FP16, not BF16: see Matrix::x_scale
};
// What quotients by a divisor are made of: the high word of the product with a number, if number
// times divisor is below 2^32; a divisor of 1 gives 0 and is asked for separately.
inline constexpr std::uint32_t divider(int divisor) {
  return 0xFFFFFFFFU / static_cast<std::uint32_t>(divisor) + 1;
}

inline constexpr bool is_e4m3(Format f) { return f == Format::kE4M3 || f == Format::kE4M3Half; }

// A repacked matrix (layout version 4, backend/cuda/pack.h): row groups of 16 rows; inside a group
// the `parts` of K one after the other, inside a part its tiles in order.
struct Matrix {
  const unsigned char* data = nullptr;
  const float* row_scale = nullptr;  // [16 * row_groups], E4M3 only
  Format format = Format::kBF16;
  // kE4M3Half: a power of two that staged activations carry. What they are before is rounded to
  // BF16 and at most B in magnitude, B * x_scale at most 2^15: exact from B * 2^-32 on, below that
  // 2^-40 B at most away.
  float x_scale = 1;
  std::int32_t row_groups = 0;
  std::int32_t cols = 0;              // of K, unpadded
  std::uint32_t groups_divider = 0;   // divider() of row_groups
  std::uint32_t vectors_divider = 0;  // of cols / 8
  std::int32_t parts = 0;      // fixed eighths of K held here: 8, or fewer on one rank of a group
  std::int32_t part_cols = 0;  // padded columns of a part
  std::int32_t tiles = 0;      // of a part, all planes
  std::int32_t tile_bytes = 0;
  std::int32_t chunk_tiles = 0;  // tiles of one copy into the ring
  std::int32_t span = 0;         // parts of one item of work; above 1 only if they fit one copy
  std::int32_t chunks = 0;       // copies of an item
  std::int32_t log_items = 0;    // items of a row group: parts / span
  std::int32_t row_bytes = 0;    // of a staged activation row: its parts padded, and a bank shift
  std::int64_t group_bytes = 0;  // of one row group
};

struct alignas(16) Layer {
  Matrix qkv;  // q, k, v (and index q, index k) one after the other
  Matrix o;
  Matrix router;         // row groups x parts x tiles
  Matrix gate_up, down;  // of routed expert 0; a row group of gate_up is 8 gate, 8 up rows
  std::int64_t gate_up_stride = 0, down_stride = 0;  // bytes from one expert to the next
  Matrix shared_gate_up, shared_down;                // the shared expert, or the dense MLP
  const std::uint16_t *input_norm = nullptr, *post_norm = nullptr;  // [hidden]
  const std::uint16_t *q_norm = nullptr, *k_norm = nullptr;         // [head_dim]
  const std::uint16_t *index_q_norm = nullptr, *index_k_norm = nullptr;
  // What index queries carry as FP16, as activations do (Matrix::x_scale); 0: they are BF16, and
  // with a BF16 cache of index keys.
  float index_q_scale = 0;
  const float* router_bias = nullptr;                    // [experts] or null
  unsigned char *k_cache = nullptr, *v_cache = nullptr;  // [page][kv head][128][head_dim]
  unsigned char* index_cache = nullptr;                  // [page][128][index_dim]
  std::int32_t sparse = 0, moe = 0, shared = 0;
};

struct Shape {
  std::int32_t hidden, heads, kv_heads, group, head_dim, rotary;
  std::int32_t index_heads, index_dim, block_size, topk, init_blocks, local_blocks;
  std::int32_t experts, chosen, expert_width, mid_width, vocab;
  std::int32_t q_at, k_at, v_at, index_q_at, index_k_at, projected;  // columns of the projections
  std::int32_t kv_fp8, index_fp8;
  float eps, routed_scale, alpha, limit, beta;
  float k_scale, v_scale, index_scale, score_scale;
};

// The rows of one step.
struct StepRows {
  std::int32_t rows, logit_rows, score;  // score: some row has more blocks than it may attend to
  std::int32_t max_groups;               // most groups of 16 keys any row sees
  // Most partials of any row, of dense layers (dense_partials()) and of sparse ones (key chunks).
  std::int32_t max_chunks[2];
  std::int32_t token[kMaxRows], position[kMaxRows], table[kMaxRows], logit_row[kMaxRows];
};
// One step of up to 16 rows, uploaded before each launch.
struct Step : StepRows {
  float rope[kMaxRows][kMaxRotary];  // cosines, then sines
};

// The experts of a step's rows. Slots are (row, expert) pairs: the routed ones by ascending expert,
// then the shared expert's. Passes are up to 8 slots of one expert, the shared expert's come first.
struct Table {
  std::int32_t shared_passes, passes, slots;
  std::int32_t most;                                 // slots of a routed pass
  std::int16_t expert[kMaxRows * (kMaxChosen + 1)];  // of a pass; -1: shared expert or dense MLP
  std::int16_t first[kMaxRows * (kMaxChosen + 1)];   // slot
  std::int16_t count[kMaxRows * (kMaxChosen + 1)];
  std::int32_t slot_row[kMaxRows * (kMaxChosen + 1)];
  float slot_weight[kMaxRows * (kMaxChosen + 1)];
  std::int32_t chosen[kMaxRows][kMaxChosen];   // ascending
  std::int32_t slot_of[kMaxRows][kMaxChosen];  // of each choice
};

enum Stage : int {
  kEmbed,
  kQkv,
  kHeads,  // and index scores
  kAttend,
  kMerge,
  kOutput,
  kRouter,
  kShared,  // part of kGateUp's launch; a stage of its own in the fused kernel
  kGateUp,
  kDown,
  kHead,
  kInputNorm,  // sums of squares of rows normed by part, in the fused kernel
  kPostNorm,   // the same, and normed rows for the experts
  kStages
};

inline constexpr int kBarrierStride = 32;  // words
inline constexpr int kBarrierWords = kStages * kBarrierStride;
// What a rank's blocks hand to each other through: counters, then words (words.h).
inline constexpr int kHandOffWords = kBarrierWords + kAllWords * 4;
static_assert(kBarrierWords % 4 == 0);

// A row's attention in a dense layer: so many pages, a power of two, meet in one partial, by its
// number of pages alone; and its partials.
inline constexpr int kMostPartials = 256;
inline constexpr int kDenseTeams = 2;  // of a block's warps, a page each
// Columns of a sum that kernels for dense layers keep, so that there is room for what else lies
// there.
inline constexpr int dense_red_columns(int rows) { return 128 / red_entries(rows); }
inline constexpr int dense_log_span(int pages) {
  int log = 0;
  while ((pages - 1) >> log >= kMostPartials) ++log;
  return log;
}
inline constexpr int dense_partials(int pages) {
  return ((pages - 1) >> dense_log_span(pages)) + 1;
}

// Of a partial of one KV head: group x head_dim values, group maxima, group sums; whole vectors.
inline constexpr int partial_floats(int group, int head_dim) {
  return (group * (head_dim + 2) + 3) / 4 * 4;
}

// Scratch of a chunk of attention in shared memory: a page of values, then the rest.
inline constexpr int value_row_bytes(int head_dim, bool fp8) {
  return head_dim * (fp8 ? 1 : 2) + 16;
}
inline constexpr int kAttentionScratch = 16 * 132 * 4 + 2 * 8 * 288 * 2;
inline constexpr int attention_bytes(int head_dim, bool fp8) {
  return kPageTokens * value_row_bytes(head_dim, fp8) + kAttentionScratch;
}

// The same of a team in dense layers: pages of values (one in steps of up to four rows, whose ring
// needs the room more), scores and probabilities; queries and factors lie where sums do between
// products.
inline constexpr int kTeamQueryBytes = 8 * 288 * 2;
inline constexpr int dense_value_pages(int rows) { return rows <= 4 ? 1 : 2; }
inline constexpr int dense_attention_bytes(int head_dim, bool fp8, int rows) {
  return attention_bytes(head_dim, fp8) - kTeamQueryBytes +
         (dense_value_pages(rows) - 1) * kPageTokens * value_row_bytes(head_dim, fp8);
}

// A row of half of MiniMax-M3's columns, normed for a product (device/halves.cuh).
inline constexpr int kHalfRowBytes = kMaxHidden / 2 * 2 + 64;

// What the stage of heads keeps in shared memory in kernels for MiniMax-M3 of up to `rows` rows,
// more than one: index queries of all rows, then keys on their way, sixteen at a time. (Of more
// than four rows the first keys are sent before the projections, and lie behind what those take.)
inline constexpr int kKeyGroupBytes = 16 * (128 + 16);
inline constexpr int kIndexQueryBytes = 4 * 128 * 2;  // of a row
inline constexpr int kMostKeyBuffers = 2;             // of a warp
inline constexpr int key_buffers(int rows) { return rows > 4 ? kMostKeyBuffers : 1; }
inline constexpr int heads_bytes(int rows) {
  return rows == 1 ? 0 : rows * kIndexQueryBytes + kWarps * key_buffers(rows) * kKeyGroupBytes;
}

struct Params {
  Shape shape;
  const Layer* layers;
  const Step* step;
  const std::int32_t* pages;  // tables, table_stride entries each
  std::int32_t table_stride;
  const std::uint16_t* embed;       // [vocab, hidden]
  const std::uint16_t* final_norm;  // [hidden]
  Matrix lm_head;

  std::uint16_t *hidden, *middle;  // [rows, hidden], residual stream before and after attention
  std::uint16_t* normed;  // [rows, hidden], after the final norm; before it the fused kernel's
  float* projected;       // [kProjectionParts, kMaxRows, projected_stride], sums of parts, unscaled
  std::uint16_t* q;       // [rows, heads, head_dim], scaled as products take them
  float* scores;          // [rows, index_heads, score_stride], one per 16 keys
  std::int32_t* block_ids;  // [rows, index_heads, topk]
  float* partials;          // [rows, kv_heads, max_chunks, partial_floats()]
  std::uint16_t* attended;  // [rows, heads * head_dim], scaled
  float* router;            // [parts, rows, 16 * row groups]
  std::uint16_t* mid;       // [slots, mid_width], scaled
  Table* table;
  float* logits;  // [logit_rows, vocab]
  std::int32_t score_stride, max_chunks;
  std::int32_t projected_stride;  // of a row of sums: the row groups of the projections

  // Of a launch, the same for all its ranks: from first_layer up to, not including, barrier.
  std::int32_t first_layer, last_layer;  // of a run
  std::int32_t x_bytes, slots;
  std::int32_t dense_x_bytes, dense_slots;  // the same of dense layers' kernels for M3
  // Copies on their way into the ring, at most: of routed experts, and of what is known before and
  // so has more time.
  std::int32_t in_flight, known_in_flight;
  std::int32_t most_rows;  // that the launch is planned for
  std::int32_t red_columns, red_entries;
  std::uint32_t blocks_divider;  // of the launch
  std::int32_t round;      // items of a round: a power of two, at most a warp each and a slot each
  std::uint32_t* barrier;  // kHandOffWords; first arrivals of each stage, one a line
  Record* record;
  std::uint64_t deadline_ns;
  std::int32_t stall_block;  // tests: this block never arrives; -1: none
  std::int32_t stall_stage;  // at this stage; -1: at any
  std::int32_t stall_step;   // with peers, in the step of this tag only; -1: in every step
  std::uint32_t*
      stamps;  // [layers of the run, stages, 2, blocks] SM clocks at start and end, or null

  Mailbox mail;
  // Several ranks in one launch: blocks [r * rank_blocks, (r + 1) * rank_blocks) take
  // rank_params[r] for all that is not of the launch. Null and 0 (or 1): one rank has the whole
  // grid.
  const Params* rank_params;
  std::int32_t local_ranks, rank_blocks;
};

}  // namespace monolayer::cuda

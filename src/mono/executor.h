// The interface between the mono library and a backend: prepare a step, run layers, close.
//
// Every executor of one deployment computes the same bits as the native chain and as the serial
// interpreter. Nothing here owns memory of the caller: weights, caches and tables are borrowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"
#include "m3/config.h"
#include "m3/rope.h"

namespace monolayer::tp {
class Group;
}

namespace monolayer::mono {

inline constexpr std::int64_t kMaxRows = 16;          // of one step
inline constexpr std::int64_t kMaxQueryLength = 8;    // rows of one request
inline constexpr std::int64_t kMaxContext = 1 << 20;  // tokens

// How a weight matrix [rows, cols] lies in memory. Rows are `row_bytes` apart, so that a column
// slice of a larger matrix is a view too.
enum class WeightLayout : std::uint8_t {
  kF32,
  kBF16,
  kE4M3,   // scales: float32 [rows], or null for factors of 1
  kMXFP8,  // E4M3; scales: E8M0 [rows, cols / 32], rows `scale_row_bytes` apart
  kMXFP4,  // two E2M1 a byte, the even element low; scales as kMXFP8
};

struct WeightView {
  WeightLayout layout = WeightLayout::kBF16;
  std::int64_t rows = 0, cols = 0;
  const void* data = nullptr;
  std::int64_t row_bytes = 0;
  const void* scales = nullptr;
  std::int64_t scale_row_bytes = 0;
  bool empty() const { return rows == 0; }
};

struct MlpWeightView {
  WeightView gate, up;  // [width of this rank, hidden]
  WeightView down;      // [hidden, width of this rank]
};

// One layer of one rank. Vectors are BF16 with 2-byte alignment, `router_bias` float32 aligned.
struct LayerView {
  bool sparse = false;  // block-sparse attention with an index branch, else full causal
  bool moe = false;     // routed experts, else one dense MLP
  const bf16_t *input_norm = nullptr, *post_norm = nullptr;       // [hidden]
  const bf16_t *q_norm = nullptr, *k_norm = nullptr;              // [head_dim]
  const bf16_t *index_q_norm = nullptr, *index_k_norm = nullptr;  // sparse: [index_dim]
  WeightView q, k, v;           // this rank's heads: [heads * head_dim, hidden], [kv_heads * ..]
  WeightView index_q, index_k;  // sparse: [index_heads * index_dim, hidden], [index_dim, hidden]
  WeightView o;                 // [hidden, this rank's query columns]
  MlpWeightView dense;          // !moe
  WeightView router;            // moe: [experts, hidden], F32 or BF16, whole on every rank
  const float* router_bias = nullptr;  // moe: [experts], or null
  std::vector<MlpWeightView> experts;  // moe: routed ones only, by id
  MlpWeightView shared;                // moe: empty if there is none
};

// Paged caches of one layer; pages are 128 tokens. Entry (block, kv head, token) of K begins at
// k + block * block_bytes + head * head_bytes + token * token_bytes; the same for V. Index keys
// have no heads. Strides express either separate K and V pools or both halves in one block.
struct CacheView {
  DType kv = DType::kBF16, index = DType::kBF16;                // kBF16 or kE4M3
  float k_scale = 1, v_scale = 1, index_scale = 1;              // E4M3: stored = value / scale
  std::byte *k = nullptr, *v = nullptr, *index_keys = nullptr;  // index_keys null on dense layers
  std::int64_t block_bytes = 0, head_bytes = 0, token_bytes = 0;
  std::int64_t index_block_bytes = 0, index_token_bytes = 0;
  std::int64_t blocks = 0, index_blocks = 0;  // capacities
};

// One row of a step. Rows of a request stand together and have ascending positions without gaps.
// A row that is not live (padding) is never computed: none of its other fields are read, its
// hidden and residual inputs are not read, its outputs are zeros.
struct StepRow {
  bool live = false;
  std::int32_t request = 0;   // rows with the same number share tables
  std::int64_t position = 0;  // rotary position; keys 0..position are visible
  // Block ids of positions 0, 128, ...: position / 128 + 1 entries are read. Main and index caches
  // are addressed independently. Valid until the next prepare().
  const std::int32_t* main_table = nullptr;
  const std::int32_t* index_table = nullptr;     // unused if no layer is sparse
  std::int64_t main_slot = -1, index_slot = -1;  // where the row's entries go: block * 128 + token
};

struct ExecutorConfig {
  // This rank's share of the model: num_heads, num_kv_heads, index_heads, dense_width,
  // expert_width and shared_width count what the rank holds; everything else is global. The layers
  // are those the executor runs, in order.
  m3::ModelConfig shape;
  std::vector<LayerView> layers;  // [shape.num_layers]
  std::vector<CacheView> caches;  // [shape.num_layers]
  std::int64_t max_context = kMaxContext;
  m3::RotaryTable rotary{};    // replaces the angles of rope_theta; covers max_context, or null
  tp::Group* group = nullptr;  // null: one rank
};

// What ran and how long it took; the currency of benches and timelines.
struct ExecutorStatistics {
  std::int64_t weight_bytes = 0, cache_bytes = 0;  // moved by the last run of layers
  double wait_seconds = 0;                         // lost to waits, summed over workers
};

// Memory that preparing a step touches, for whoever asks for it ahead.
struct StepMemory {
  struct Rows {
    const void* begin = nullptr;
    std::size_t bytes = 0;  // of each row
  };
  std::span<const std::byte> fixed[2];
  Rows per_row[2];
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Host only; no collective. Checks and expands the rows of one step; every layer of the step
  // then uses them. A second prepare() abandons the first step. kInvalidArgument naming row, value
  // and bound, before anything is changed.
  virtual Status prepare(std::span<const StepRow> rows) = 0;
  // The same for rows that examine_step() has expanded within the limits of this executor's caches:
  // nothing it found is looked for again. (Without a default, which the compiler would guess at
  // wherever it is called, at the price of a line of memory.)
  virtual Status prepare_checked(std::span<const StepRow> rows) = 0;

  // As long as the executor lives.
  virtual StepMemory step_memory() const { return {}; }

  // Runs `count` layers from the executor's layer `first` on. All [rows, hidden], BF16, contiguous:
  //   stream  = BF16(residual + hidden)      (residual null: the stream is `hidden`)
  //   stream' = BF16(stream + BF16(attention output))
  //   hidden_out = BF16(MLP output); residual_out = stream'   (of the last layer)
  // Inside a run the next layer's stream is BF16(residual_out + hidden_out). Outputs may alias
  // inputs. Collective over the group: all ranks make the same calls in the same order.
  virtual Status run_layers(std::int64_t first, std::int64_t count, const bf16_t* hidden,
                            const bf16_t* residual, bf16_t* hidden_out, bf16_t* residual_out) = 0;

  // Selected blocks of the layer that ran last, ascending: [rows, index heads of the rank, topk],
  // -1 beyond the selected ones and on rows that are not live. Empty if it was a dense layer.
  virtual std::span<const std::int32_t> selections() const = 0;
  virtual const ExecutorStatistics& statistics() const = 0;

  // Collective; idempotent. Everything after it is refused.
  virtual Status close() = 0;
};

}  // namespace monolayer::mono

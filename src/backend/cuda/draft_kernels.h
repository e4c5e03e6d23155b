// The EAGLE3 draft's kernels: its matrices as stored, up to 16 rows at a time. Every output is
// summed in an order that depends on its own row alone.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace monolayer::cuda {

inline constexpr int kDraftRows = 16;
inline constexpr int kDraftChunks = 64;    // of a row's context, at most
inline constexpr int kDraftSlices = 32;    // of a row of logits
inline constexpr int kMaxDraftHead = 256;  // head_dim

// The rows of one step: places, tables, where entries go; rows whose logits are wanted.
struct DraftRows {
  std::int32_t place[kDraftRows];  // keys are those of places 1 to place
  std::int32_t table[kDraftRows], page[kDraftRows], slot[kDraftRows];
  std::int32_t proposing[kDraftRows];
};

struct DraftNorm {
  const std::uint16_t* in;  // BF16; row r, part p: in + row * in_stride + p * n
  std::int64_t in_stride;
  const std::uint16_t* weight;  // [parts, n]
  std::uint16_t* out;           // [rows, parts, n]
  int n;
  float eps;
};
cudaError_t draft_norm(const DraftNorm& norm, int rows, int parts, cudaStream_t stream);

// out[i] = in[rows.proposing[i]], BF16 rows of n.
cudaError_t draft_gather(const DraftRows* rows, const std::uint16_t* in, std::int64_t in_stride,
                         std::uint16_t* out, int n, int proposing, cudaStream_t stream);

enum class DraftOut : std::uint8_t {
  kFloat,    // float32
  kRounded,  // BF16
  kAdded     // rounded to BF16, added to the BF16 value there, rounded again
};
// Rows up to the next power of two are computed, so that everything needs room for kDraftRows.
struct DraftProduct {
  const std::uint16_t* w;  // BF16 [outputs, cols]; cols a multiple of 8
  int outputs, cols;
  const std::uint16_t* x;  // BF16 [rows, cols]
  void* out;               // [rows, out_stride]
  std::int64_t out_stride;
};
cudaError_t draft_product(const DraftProduct& product, DraftOut kind, int rows,
                          cudaStream_t stream);

struct DraftHeads {
  const DraftRows* rows;
  const float* projected;  // [rows, (heads + 2 * kv_heads) * head_dim]
  const float* rope;       // [rows, head_dim]: cosines, then sines
  std::uint16_t* q;        // [rows, heads, head_dim]
  std::uint16_t *k, *v;    // caches: [page][kv head][128][head_dim]
  const std::int32_t* tables;
  std::int64_t table_stride;
  float* partials;          // [proposing, heads, kDraftChunks, head_dim + 2]
  std::uint16_t* attended;  // [proposing, heads, head_dim]
  int heads, kv_heads, head_dim;
};
// Rotation and rounding: queries, and the rows' entries into the caches.
cudaError_t draft_heads(const DraftHeads& heads, int rows, cudaStream_t stream);
// Attention over the whole context, of the rows that propose. `pages`: of the longest one.
cudaError_t draft_attention(const DraftHeads& heads, int proposing, int pages, cudaStream_t stream);

// mid[r, i] = silu(gate) * up of gate_up [rows, 2 * width], rounded.
cudaError_t draft_activation(const float* gate_up, std::uint16_t* mid, int width, int rows,
                             cudaStream_t stream);

// Of a slice of a row of logits.
struct DraftBest {
  float value;
  std::int32_t id;   // the lowest one of the largest logits; -1: the slice is empty
  std::int32_t bad;  // the lowest one that is no number; -1: none
};
// out: [rows, kDraftSlices].
cudaError_t draft_best(const float* logits, int vocab, DraftBest* out, int rows,
                       cudaStream_t stream);

}  // namespace monolayer::cuda

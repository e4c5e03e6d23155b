/* A tiny model in memory, the same from C, C++ and Python: every value is a hash of its tensor's
 * number and its index. Valid C99 and C++. */
#ifndef TINY_MODEL_H_
#define TINY_MODEL_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <monolayer/monolayer.h>

enum {
  kLayers = 2,
  kHidden = 64,
  kHeads = 8,
  kKvHeads = 4,
  kHeadDim = 32,
  kIndexDim = 32,
  kExperts = 4,
  kWidth = 256,
  kTinyBlocks = 8,
  kFirstLayer = 3,
  kTinySteps = 100,
  kTinyRows = 6 /* of a step, at most */
};

static uint64_t tiny_hash(uint64_t tensor, uint64_t i) {
  uint64_t z = tensor * 0x100000000ULL + i + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/* BF16 in (-1/8, 1/8), by truncation. */
static uint16_t tiny_bf16(uint64_t tensor, uint64_t i) {
  const float value = ((float)(tiny_hash(tensor, i) >> 40) / 16777216.0F - 0.5F) * 0.25F;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}

typedef struct tiny_arena {
  void* blocks[512];
  int count;
} tiny_arena;

static void* tiny_alloc(tiny_arena* arena, size_t bytes) {
  void* at = NULL;
  if (posix_memalign(&at, 64, bytes) != 0) abort();
  arena->blocks[arena->count++] = at;
  return at;
}

static void tiny_free(tiny_arena* arena) {
  for (int i = 0; i < arena->count; ++i) free(arena->blocks[i]);
  arena->count = 0;
}

static ml_tensor tiny_tensor(void* data, int32_t dtype, int32_t rank, int64_t a, int64_t b,
                             int64_t c, int64_t d) {
  ml_tensor t = ML_TENSOR_INIT;
  const int64_t shape[4] = {a, b, c, d};
  int64_t next = 1;
  t.data = data;
  t.dtype = dtype;
  t.layout = ML_LAYOUT_ROWS;
  t.device_type = ML_DEVICE_CPU;
  t.rank = rank;
  for (int axis = rank - 1; axis >= 0; --axis) {
    t.shape[axis] = shape[axis];
    t.strides[axis] = next;
    next *= shape[axis];
  }
  return t;
}

static ml_tensor tiny_values(tiny_arena* arena, uint64_t number, int32_t rank, int64_t a,
                             int64_t b) {
  const int64_t n = rank == 1 ? a : a * b;
  uint16_t* data = (uint16_t*)tiny_alloc(arena, (size_t)n * 2);
  for (int64_t i = 0; i < n; ++i) data[i] = tiny_bf16(number, (uint64_t)i);
  return tiny_tensor(data, ML_BF16, rank, a, b, 1, 1);
}

static ml_matrix tiny_matrix(tiny_arena* arena, uint64_t number, int64_t rows, int64_t cols) {
  ml_matrix m;
  memset(&m, 0, sizeof m);
  m.size = sizeof m;
  m.scale.size = sizeof m.scale;
  m.weight = tiny_values(arena, number, 2, rows, cols);
  return m;
}

/* MXFP4 [kExperts + 1, rows, cols]. */
static ml_matrix tiny_table(tiny_arena* arena, uint64_t number, int64_t rows, int64_t cols) {
  ml_matrix m;
  const int64_t n = (kExperts + 1) * rows * cols;
  uint8_t* bytes = (uint8_t*)tiny_alloc(arena, (size_t)(n / 2));
  uint8_t* scales = (uint8_t*)tiny_alloc(arena, (size_t)(n / 32));
  for (int64_t i = 0; i < n / 2; ++i) bytes[i] = (uint8_t)(tiny_hash(number, (uint64_t)i) >> 24);
  for (int64_t i = 0; i < n / 32; ++i) {
    scales[i] = (uint8_t)(120 + (tiny_hash(number + 1, (uint64_t)i) >> 60) % 3);
  }
  memset(&m, 0, sizeof m);
  m.size = sizeof m;
  m.weight = tiny_tensor(bytes, ML_E2M1X2, 3, kExperts + 1, rows, cols / 2, 1);
  m.scale = tiny_tensor(scales, ML_E8M0, 3, kExperts + 1, rows, cols / 32, 1);
  return m;
}

static ml_model tiny_model_constants(void) {
  ml_model m;
  memset(&m, 0, sizeof m);
  m.size = sizeof m;
  m.num_layers = kFirstLayer + kLayers;
  m.hidden_size = kHidden;
  m.num_heads = kHeads;
  m.num_kv_heads = m.index_heads = kKvHeads;
  m.head_dim = kHeadDim;
  m.index_dim = kIndexDim;
  m.rotary_dim = 16;
  m.block_size = 128;
  m.topk_blocks = 2;
  m.local_blocks = 1;
  m.num_experts = kExperts;
  m.experts_per_token = 2;
  m.expert_width = m.shared_width = kWidth;
  m.max_positions = 1024;
  m.rope_theta = 10000;
  m.rms_eps = 1e-6F;
  m.routed_scale = 2;
  m.swiglu_alpha = 1.702F;
  m.swiglu_limit = 7;
  m.swiglu_beta = 1;
  return m;
}

static ml_layer_spec tiny_layer(tiny_arena* arena, int32_t i) {
  ml_layer_spec s;
  const uint64_t n = 100U * (uint64_t)(i + 1);
  memset(&s, 0, sizeof s);
  s.size = sizeof s;
  s.layer_id = kFirstLayer + i;
  s.input_norm = tiny_values(arena, n, 1, kHidden, 1);
  s.post_norm = tiny_values(arena, n + 1, 1, kHidden, 1);
  s.q_norm = tiny_values(arena, n + 2, 1, kHeadDim, 1);
  s.k_norm = tiny_values(arena, n + 3, 1, kHeadDim, 1);
  s.index_q_norm = tiny_values(arena, n + 4, 1, kIndexDim, 1);
  s.index_k_norm = tiny_values(arena, n + 5, 1, kIndexDim, 1);
  s.q = tiny_matrix(arena, n + 6, kHeads * kHeadDim, kHidden);
  s.k = tiny_matrix(arena, n + 7, kKvHeads * kHeadDim, kHidden);
  s.v = tiny_matrix(arena, n + 8, kKvHeads * kHeadDim, kHidden);
  s.index_q = tiny_matrix(arena, n + 9, kKvHeads * kIndexDim, kHidden);
  s.index_k = tiny_matrix(arena, n + 10, kIndexDim, kHidden);
  s.o = tiny_matrix(arena, n + 11, kHidden, kHeads * kHeadDim);
  s.router = tiny_matrix(arena, n + 12, kExperts, kHidden);
  s.stacked.size = sizeof s.stacked;
  s.stacked.gate = tiny_table(arena, n + 20, kWidth, kHidden);
  s.stacked.up = tiny_table(arena, n + 22, kWidth, kHidden);
  s.stacked.down = tiny_table(arena, n + 24, kHidden, kWidth);
  return s;
}

/* Caches start out as NaN patterns: nothing may read what was not written. */
static ml_cache_spec tiny_cache(tiny_arena* arena, int32_t i, int64_t kv_heads) {
  ml_cache_spec s;
  const size_t main_bytes = (size_t)(kTinyBlocks * kv_heads * 128 * kHeadDim * 2);
  const size_t index_bytes = (size_t)(kTinyBlocks * 128 * kIndexDim * 2);
  memset(&s, 0, sizeof s);
  s.size = sizeof s;
  s.layer_id = kFirstLayer + i;
  s.k = tiny_tensor(memset(tiny_alloc(arena, main_bytes), 0xff, main_bytes), ML_BF16, 4,
                    kTinyBlocks, kv_heads, 128, kHeadDim);
  s.v = tiny_tensor(memset(tiny_alloc(arena, main_bytes), 0xff, main_bytes), ML_BF16, 4,
                    kTinyBlocks, kv_heads, 128, kHeadDim);
  s.index = tiny_tensor(memset(tiny_alloc(arena, index_bytes), 0xff, index_bytes), ML_BF16, 3,
                        kTinyBlocks, 128, kIndexDim, 1);
  s.k.layout = s.v.layout = s.index.layout = ML_LAYOUT_PAGES;
  s.k_scale = s.v_scale = s.index_scale = 1;
  s.max_context = kTinyBlocks * 128;
  return s;
}

static uint64_t tiny_fold(uint64_t sum, const void* data, size_t bytes) {
  const uint8_t* at = (const uint8_t*)data;
  for (size_t i = 0; i < bytes; ++i) sum = (sum ^ at[i]) * 0x100000001b3ULL;
  return sum;
}

/* Steps of two requests with 1 to 3 rows each; calls back with hidden and residual inputs. */
typedef struct tiny_step {
  ml_step md;
  int32_t main_table[8], index_table[8], seq_lens[2];
  int64_t main_slots[kTinyRows], index_slots[kTinyRows], positions[kTinyRows];
  uint16_t* hidden; /* [kTinyRows, kHidden], 64-byte aligned */
  uint16_t* residual;
  int64_t length; /* tokens of a request before the step */
} tiny_step;

static void tiny_next_step(tiny_step* s, int32_t step) {
  const int32_t q = 1 + step % 3;
  memset(&s->md, 0, sizeof s->md);
  s->md.size = sizeof s->md;
  s->md.requests = 2;
  s->md.query_len = q;
  s->md.token_count = 2 * q;
  s->md.table_width = s->md.index_table_width = 4;
  for (int32_t i = 0; i < 8; ++i) {
    s->main_table[i] = i;
    s->index_table[i] = 7 - i;
  }
  for (int32_t r = 0; r < 2; ++r) {
    s->seq_lens[r] = (int32_t)(s->length + q);
    for (int32_t j = 0; j < q; ++j) {
      const int64_t at = s->length + j;
      const int32_t row = r * q + j;
      s->positions[row] = at;
      s->main_slots[row] = (int64_t)s->main_table[r * 4 + (int32_t)(at / 128)] * 128 + at % 128;
      s->index_slots[row] = (int64_t)s->index_table[r * 4 + (int32_t)(at / 128)] * 128 + at % 128;
    }
  }
  s->length += q;
  for (int32_t i = 0; i < 2 * q * kHidden; ++i) {
    s->hidden[i] = tiny_bf16(1000 + (uint64_t)step, (uint64_t)i);
    s->residual[i] = tiny_bf16(5000 + (uint64_t)step, (uint64_t)i);
  }
  s->md.main_table = s->main_table;
  s->md.index_table = s->index_table;
  s->md.seq_lens = s->seq_lens;
  s->md.main_slots = s->main_slots;
  s->md.index_slots = s->index_slots;
}

#endif /* TINY_MODEL_H_ */

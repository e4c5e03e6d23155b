/* libmonolayer: fused decode of MiniMax-M3 style sparse layers, for any serving engine.
 *
 * The caller owns weights, caches, block tables and the model loop; the library borrows views and
 * owns only scratch and mailboxes. docs/library.md has a complete example.
 *
 * Conventions
 *   - Every struct starts with `size`, which the caller sets to sizeof of the struct it compiled
 *     against (the ML_*_INIT macros do). Fields added later lie at the end and are read as zero
 *     from a smaller struct. ml_tensor and the structs made of it are frozen within one
 *     ML_ABI_VERSION.
 *   - Every function that can fail returns an ML_* code; ml_last_error() is the calling thread's
 *     last message, one line naming layer, tensor, value and bound. No exception leaves the
 * library.
 *   - A refused call has allocated, written and enqueued nothing.
 *   - Addresses are plain: block ids as allocated, slot = block * 128 + offset, -1 = padding.
 *   - Calls on one ml_mono are serialised by the caller; different objects are independent.
 *     `collective` functions are called by all ranks of the group in the same order.
 */
#ifndef MONOLAYER_MONOLAYER_H_
#define MONOLAYER_MONOLAYER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ML_API __attribute__((visibility("default")))
#else
#define ML_API
#endif

#define ML_ABI_VERSION 1

/* Codes. */
#define ML_OK 0
#define ML_INVALID_ARGUMENT 1    /* outside its documented bounds */
#define ML_UNSUPPORTED 2         /* well formed, but nothing here runs it: use your native path */
#define ML_FAILED_PRECONDITION 3 /* wrong order: use after close, forward before prepare, ... */
#define ML_RESOURCE_EXHAUSTED 4  /* out of memory; both figures are in the message */
#define ML_DEADLINE_EXCEEDED 5   /* a peer did not answer; the whole group is unusable */
#define ML_PEER_REFUSED 6        /* another rank refused; its reason is in the message */
#define ML_INTERNAL 7            /* a bug */

/* Element types. E2M1x2 is a byte of two values, the even element in the low nibble; shapes and
 * strides count such bytes. */
#define ML_F32 1
#define ML_BF16 2
#define ML_E4M3 3
#define ML_E2M1X2 4
#define ML_E8M0 5
#define ML_I32 6
#define ML_I64 7

/* Layout tags. ML_LAYOUT_ROWS: row-major as published in checkpoints, the last stride 1, other
 * strides free as long as rows do not overlap: a column slice of a larger matrix is fine.
 * ML_LAYOUT_PAGES: paged cache, [blocks, kv_heads, 128, head_dim] or [blocks, 128, index_dim],
 * contiguous inside a block, blocks any distance apart. */
#define ML_LAYOUT_ROWS 1
#define ML_LAYOUT_PAGES 2

/* Devices, numbered as in DLPack. */
#define ML_DEVICE_CPU 1
#define ML_DEVICE_CUDA 2

/* What a tensor is for, in ml_accepted_layouts. */
#define ML_ROLE_WEIGHT 1
#define ML_ROLE_CACHE 2
#define ML_ROLE_ACTIVATION 3

#define ML_MAX_RANK 4
#define ML_MAX_ROWS 16      /* rows of a step, padding counted */
#define ML_MAX_QUERY 8      /* rows of one request */
#define ML_BLOCK_TOKENS 128 /* tokens of a cache block */
#define ML_MAX_CONTEXT 1048576

/* A borrowed tensor; `data` NULL means absent. Alignment: data and every stride of weights and
 * caches a multiple of 16 bytes where the role's documentation says so, else of the element. */
typedef struct ml_tensor {
  uint32_t size;
  int32_t dtype;
  int32_t layout;
  int32_t device_type;
  int32_t device_index;
  int32_t rank; /* dimensions used, outermost first */
  void* data;
  int64_t shape[ML_MAX_RANK];
  int64_t strides[ML_MAX_RANK]; /* in elements (E2M1x2: bytes) */
} ml_tensor;
#define ML_TENSOR_INIT                                                   \
  {                                                                      \
    sizeof(ml_tensor), 0, 0, 0, 0, 0, NULL, {0, 0, 0, 0}, { 0, 0, 0, 0 } \
  }

/* A matrix [out, in] in its stored format, told by its element types:
 *   weight BF16 (router: or F32) [out, in]   no scale
 *   weight E4M3 [out, in]                    scale F32 [out]: per channel, over the full row
 *   weight E4M3 [out, in]                    scale E8M0 [out, in / 32]: MXFP8
 *   weight E2M1x2 [out, in / 2]              scale E8M0 [out, in / 32]: MXFP4
 * With `stacked` experts both gain a leading axis. Any alignment. */
typedef struct ml_matrix {
  uint32_t size;
  uint32_t reserved;
  ml_tensor weight, scale;
} ml_matrix;

typedef struct ml_mlp {
  uint32_t size;
  uint32_t reserved;
  ml_matrix gate, up; /* [width, hidden] */
  ml_matrix down;     /* [hidden, width] */
} ml_mlp;

/* The model's constants, for the whole group: no tensor-parallel division. */
typedef struct ml_model {
  uint32_t size;
  int32_t num_layers; /* of the whole model; layer ids lie in [0, num_layers) */
  int32_t hidden_size;
  int32_t num_heads, num_kv_heads, head_dim;
  int32_t rotary_dim; /* leading values of a head that rotate, half-split pairs */
  int32_t index_heads, index_dim;
  int32_t block_size; /* keys of a selection block; divides 128 */
  int32_t topk_blocks, init_blocks, local_blocks;
  int32_t num_experts, experts_per_token;
  int32_t expert_width, shared_width; /* shared_width 0: no shared expert */
  int32_t max_positions;
  double rope_theta;
  float rms_eps;
  float routed_scale;                            /* multiplies the routed sum only */
  float swiglu_alpha, swiglu_limit, swiglu_beta; /* g * sigmoid(alpha g) * (u + beta) */
  float shared_weight; /* multiplies the shared expert's output; 0 stands for 1 */
  float softmax_scale; /* of attention's products; 0 stands for head_dim^-1/2 */
  /* Angles that replace those of rope_theta: BF16 or F32 [positions, rotary_dim], a position's
   * cosines then its sines, at least max_context of them; absent: computed. One table for all
   * layers, borrowed until ml_mono_close. */
  ml_tensor cos_sin;
} ml_model;

/* One sparse mixture-of-experts layer of one rank. Of `tp_size` ranks, rank r holds heads
 * [r * num_heads / tp_size, ...) and the KV and index heads they read; beyond num_kv_heads ranks,
 * each KV head is held by several. Widths of experts are divided by tp_size. */
typedef struct ml_layer_spec {
  uint32_t size;
  int32_t layer_id;
  ml_tensor input_norm, post_norm;      /* BF16 [hidden], multiplies by (1 + g) */
  ml_tensor q_norm, k_norm;             /* BF16 [head_dim] */
  ml_tensor index_q_norm, index_k_norm; /* BF16 [index_dim] */
  ml_matrix q, k, v;                    /* [heads * head_dim | kv_heads * head_dim, hidden] */
  ml_matrix index_q, index_k;           /* [index heads * index_dim | index_dim, hidden] */
  ml_matrix o;                          /* [hidden, heads * head_dim] */
  ml_matrix router;                     /* BF16 or F32 [num_experts, hidden], logits in F32 */
  ml_tensor router_bias;                /* F32 [num_experts], or absent */
  /* The experts, one of two ways: `stacked` with a leading axis of num_experts, or num_experts + 1
   * where the shared expert is the last; or `experts`, an array of `expert_count` of the same. */
  ml_mlp stacked;
  const ml_mlp* experts;
  int64_t expert_count;
  ml_mlp shared; /* separate shared expert in its own format; absent when it is in the table */
} ml_layer_spec;

/* The caches of one layer of one rank. Index blocks are addressed apart from main blocks. */
typedef struct ml_cache_spec {
  uint32_t size;
  int32_t layer_id;
  ml_tensor k, v;  /* BF16 or E4M3 [blocks, kv_heads, 128, head_dim], 16-byte aligned */
  ml_tensor index; /* BF16 or E4M3 [index_blocks, 128, index_dim], 16-byte aligned */
  float k_scale, v_scale, index_scale; /* E4M3: stored = value / scale; finite, positive */
  int64_t max_context;                 /* tokens of the longest request, 1 .. ML_MAX_CONTEXT */
} ml_cache_spec;

/* The ranks: opaque, made by ml_group_*. One handle per rank, used by one thread at a time. */
typedef struct ml_group ml_group;

typedef struct ml_tp_context {
  uint32_t size;
  int32_t rank, tp_size; /* tp_size 1, 2, 4 or 8 */
  int32_t device_type, device_index;
  int32_t worker_threads; /* CPU: threads of this rank's team, 0 = a share of the machine */
  ml_group* group;        /* NULL only when tp_size is 1 */
} ml_tp_context;

#define ML_STEP_CAPTURING 1U /* the stream is recording a graph */
#define ML_STEP_TRACING 2U   /* a graph compiler is tracing: refused */

/* One step's rows, replicated over the ranks. Request r has query_lens[r] rows, or query_len where
 * query_lens is NULL; rows of requests follow each other; rows past the last request are padding.
 * Arrays are contiguous, in host memory for the CPU backend, and are not read after the step's
 * last forward. */
typedef struct ml_step {
  uint32_t size;
  uint32_t flags;
  int32_t token_count; /* rows in all, 1 .. ML_MAX_ROWS */
  int32_t requests;
  int32_t query_len;         /* 1 .. ML_MAX_QUERY, also for padded requests */
  int32_t table_width;       /* entries of a row of main_table */
  int32_t index_table_width; /* and of index_table */
  int32_t reserved;
  const int32_t* query_lens;  /* [requests], or NULL */
  const int32_t* main_table;  /* [requests, table_width] block ids */
  const int32_t* index_table; /* [requests, index_table_width] index block ids */
  const int32_t* seq_lens;    /* [requests], all rows of the step counted; 0 = padded request */
  const int64_t* main_slots;  /* [token_count] where each row's K and V go, -1 = padding */
  const int64_t* index_slots; /* [token_count] where its index key goes, -1 = padding */
  void* stream;               /* execution stream; NULL on the CPU */
} ml_step;

typedef struct ml_mono ml_mono;

ML_API uint32_t ml_abi_version(void);
ML_API const char* ml_version(void);
ML_API const char* ml_code_name(int32_t code);
/* Message of this thread's last failing call; "" if none. Valid until its next failing call. */
ML_API const char* ml_last_error(void);

/* Layout tags that a device accepts for a role, the preferred one first; returns how many exist and
 * writes at most `capacity`. 0 for a device this build does not run on. */
ML_API int32_t ml_accepted_layouts(int32_t device_type, int32_t role, int32_t* out,
                                   int32_t capacity);

/* Copies `from` into the caller's memory `to` in the layout that `to` asks for: same dtype, shape
 * and device, no overlap. On the CPU the published layout is the preferred one. */
ML_API int32_t ml_repack(const ml_tensor* from, const ml_tensor* to);

/* Rows [begin, end) of a matrix, without copying: takes a fused projection apart. */
ML_API int32_t ml_slice_rows(const ml_matrix* from, int64_t begin, int64_t end, ml_matrix* out);

/* A group of `count` ranks that are threads of this process; out[count]. timeout_s bounds every
 * wait between ranks. */
ML_API int32_t ml_group_create_threads(int32_t count, double timeout_s, ml_group** out);
/* Collective: rank `rank` of `count` processes of one host and user that share nothing but a token,
 * 1 to 64 letters, digits and dashes, not used by another group at the time. */
ML_API int32_t ml_group_meet(const char* token, int32_t rank, int32_t count, double timeout_s,
                             ml_group** out);
/* Collective; after every ml_mono of the group is closed. */
ML_API int32_t ml_group_close(ml_group* group);
/* Local. Without a close before it, memory that peers may use is kept. NULL is fine. */
ML_API void ml_group_destroy(ml_group* group);

/* Collective. Checks everything on every rank, agrees, and only then allocates. Layers ascend by
 * id; one cache spec per layer, same order. ML_UNSUPPORTED on every rank if some rank cannot run
 * this model and none failed otherwise. Tensors stay borrowed until ml_mono_close. */
ML_API int32_t ml_mono_create(uint32_t abi_version, const ml_model* model,
                              const ml_layer_spec* layers, int32_t layer_count,
                              const ml_cache_spec* caches, int32_t cache_count,
                              const ml_tp_context* context, ml_mono** out);

/* Once per step, before its first layer. Validates the step; a step left unfinished is abandoned
 * and leaves nothing behind. */
ML_API int32_t ml_mono_prepare_step(ml_mono* mono, const ml_step* step);

/* Layers in the order of the specs, each once per step. hidden, residual: BF16 [token_count,
 * hidden] contiguous, 16-byte aligned; `hidden` is the reduced output of what came before,
 * positions int64 [token_count] contiguous (-1 or any value on padded rows). The outputs are views
 * of the library's memory, overwritten by the call after the next: copy what you keep. The
 * layer's output stream is hidden + residual. */
ML_API int32_t ml_mono_forward_layer(ml_mono* mono, int32_t layer_id, const ml_tensor* hidden,
                                     const ml_tensor* residual, const ml_tensor* positions,
                                     ml_tensor* hidden_out, ml_tensor* residual_out);
/* The same for `count` layers from layer id `first`, without returning to the caller between. */
ML_API int32_t ml_mono_forward_layers(ml_mono* mono, int32_t first, int32_t count,
                                      const ml_tensor* hidden, const ml_tensor* residual,
                                      const ml_tensor* positions, ml_tensor* hidden_out,
                                      ml_tensor* residual_out);

/* The data pointers of all weights and caches in the library's order, NULL where a tensor is
 * absent. Returns how many there are and writes at most `capacity`; negative: an ML_* code,
 * negated. */
ML_API int64_t ml_storage_pointers(const ml_layer_spec* layers, int32_t layer_count,
                                   const ml_cache_spec* caches, int32_t cache_count,
                                   const void** out, int64_t capacity);
/* Cheap enough for every step: ML_FAILED_PRECONDITION, naming layer and tensor, unless `pointers`
 * are those that the library was created with. */
ML_API int32_t ml_mono_check_storage(const ml_mono* mono, const void* const* pointers,
                                     int64_t count);

/* Collective, idempotent. Every later call but ml_mono_destroy is ML_FAILED_PRECONDITION. */
ML_API int32_t ml_mono_close(ml_mono* mono);
/* Local. Without a close before it, the library's memory is leaked (a peer may still be reading
 * it) and a line is logged. NULL is fine. */
ML_API void ml_mono_destroy(ml_mono* mono);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MONOLAYER_MONOLAYER_H_ */

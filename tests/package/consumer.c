/* The library from plain C: decodes a tiny model, prints a checksum of all outputs. */
#include "tiny_model.h"

static int failed(const char* what, int32_t code) {
  if (code == ML_OK) return 0;
  fprintf(stderr, "%s: %s: %s\n", what, ml_code_name(code), ml_last_error());
  return 1;
}

int main(void) {
  tiny_arena arena = {{0}, 0};
  ml_model model = tiny_model_constants();
  ml_layer_spec layers[kLayers];
  ml_cache_spec caches[kLayers];
  for (int32_t i = 0; i < kLayers; ++i) {
    layers[i] = tiny_layer(&arena, i);
    caches[i] = tiny_cache(&arena, i, kKvHeads);
  }
  ml_tp_context context;
  memset(&context, 0, sizeof context);
  context.size = sizeof context;
  context.tp_size = 1;
  context.device_type = ML_DEVICE_CPU;
  context.worker_threads = 2;

  ml_mono* mono = NULL;
  /* A refusal is a code and a line. */
  layers[1].k_norm.dtype = ML_F32;
  const int32_t refused =
      ml_mono_create(ML_ABI_VERSION, &model, layers, kLayers, caches, kLayers, &context, &mono);
  if (refused != ML_INVALID_ARGUMENT || mono != NULL ||
      strstr(ml_last_error(), "layer 4, k_norm: dtype F32") == NULL) {
    fprintf(stderr, "the wrong dtype was not refused: %d %s\n", (int)refused, ml_last_error());
    return 1;
  }
  layers[1].k_norm.dtype = ML_BF16;
  if (ml_mono_create(ML_ABI_VERSION + 1, &model, layers, kLayers, caches, kLayers, &context,
                     &mono) != ML_INVALID_ARGUMENT) {
    return 1;
  }
  if (failed("create", ml_mono_create(ML_ABI_VERSION, &model, layers, kLayers, caches, kLayers,
                                      &context, &mono))) {
    return 1;
  }
  const void* pointers[512];
  const int64_t count = ml_storage_pointers(layers, kLayers, caches, kLayers, pointers, 512);
  if (failed("check_storage", ml_mono_check_storage(mono, pointers, count))) return 1;

  tiny_step step;
  memset(&step, 0, sizeof step);
  step.hidden = tiny_alloc(&arena, kTinyRows * kHidden * 2);
  step.residual = tiny_alloc(&arena, kTinyRows * kHidden * 2);
  uint64_t sum = 0xcbf29ce484222325ULL;
  for (int32_t i = 0; i < kTinySteps; ++i) {
    tiny_next_step(&step, i);
    if (failed("prepare_step", ml_mono_prepare_step(mono, &step.md))) return 1;
    const int64_t rows = step.md.token_count;
    ml_tensor hidden = tiny_tensor(step.hidden, ML_BF16, 2, rows, kHidden, 1, 1);
    ml_tensor residual = tiny_tensor(step.residual, ML_BF16, 2, rows, kHidden, 1, 1);
    const ml_tensor positions = tiny_tensor(step.positions, ML_I64, 1, rows, 1, 1, 1);
    for (int32_t l = 0; l < kLayers; ++l) {
      ml_tensor hidden_out, residual_out;
      if (failed("forward_layer", ml_mono_forward_layer(mono, kFirstLayer + l, &hidden, &residual,
                                                        &positions, &hidden_out, &residual_out))) {
        return 1;
      }
      hidden = hidden_out;
      residual = residual_out;
    }
    sum = tiny_fold(sum, hidden.data, (size_t)(rows * kHidden * 2));
    sum = tiny_fold(sum, residual.data, (size_t)(rows * kHidden * 2));
  }
  if (failed("close", ml_mono_close(mono))) return 1;
  if (ml_mono_prepare_step(mono, &step.md) != ML_FAILED_PRECONDITION) return 1;
  ml_mono_destroy(mono);
  tiny_free(&arena);
  printf("checksum %016llx\n", (unsigned long long)sum);
  return 0;
}

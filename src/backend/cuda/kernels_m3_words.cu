// One row, with hand-offs by words.
#define MONOLAYER_KERNELS m3_words
#define MONOLAYER_KERNELS_M3 true
#define MONOLAYER_KERNELS_ROWS 1
#define MONOLAYER_KERNELS_WORDS true
#define MONOLAYER_KERNEL_SET m3_kernels_words
#include "backend/cuda/kernels_m3.cuh"

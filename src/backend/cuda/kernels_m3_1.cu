// One row.
#define MONOLAYER_KERNELS m3_1
#define MONOLAYER_KERNELS_M3 true
#define MONOLAYER_KERNELS_ROWS 1
#define MONOLAYER_KERNEL_SET m3_kernels_1
#include "backend/cuda/kernels_m3.cuh"

// Dense layers, one row.
#define MONOLAYER_KERNELS m3_dense_1
#define MONOLAYER_KERNELS_M3 false
#define MONOLAYER_KERNELS_DENSE true
#define MONOLAYER_KERNELS_ROWS 1
#define MONOLAYER_KERNEL_SET m3_dense_kernels_1
#include "backend/cuda/kernels_m3.cuh"

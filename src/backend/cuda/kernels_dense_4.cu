// Dense layers, up to four rows.
#define MONOLAYER_KERNELS m3_dense_4
#define MONOLAYER_KERNELS_M3 false
#define MONOLAYER_KERNELS_DENSE true
#define MONOLAYER_KERNELS_ROWS 4
#define MONOLAYER_KERNEL_SET m3_dense_kernels_4
#include "backend/cuda/kernels_m3.cuh"

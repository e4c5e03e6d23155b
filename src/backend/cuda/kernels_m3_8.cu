// Up to 8 rows.
#define MONOLAYER_KERNELS m3_8
#define MONOLAYER_KERNELS_M3 true
#define MONOLAYER_KERNELS_ROWS 8
#define MONOLAYER_KERNEL_SET m3_kernels_8
#include "backend/cuda/kernels_m3.cuh"

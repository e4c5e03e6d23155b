// Up to 4 rows.
#define MONOLAYER_KERNELS m3_4
#define MONOLAYER_KERNELS_M3 true
#define MONOLAYER_KERNELS_ROWS 4
#define MONOLAYER_KERNEL_SET m3_kernels_4
#include "backend/cuda/kernels_m3.cuh"

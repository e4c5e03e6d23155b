// Up to 16 rows.
#define MONOLAYER_KERNELS m3_16
#define MONOLAYER_KERNELS_M3 true
#define MONOLAYER_KERNELS_ROWS 16
#define MONOLAYER_KERNEL_SET m3_kernels_16
#include "backend/cuda/kernels_m3.cuh"

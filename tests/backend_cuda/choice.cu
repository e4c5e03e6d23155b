// The kernels for MiniMax-M3.
#define MONOLAYER_KERNELS chosen_alone
#define MONOLAYER_KERNELS_M3 true
#define MONOLAYER_KERNELS_ROWS 16
#define CHOICE_RUN run_choice
#include "backend_cuda/choice.cuh"

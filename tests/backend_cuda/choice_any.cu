// The kernels for any shape.
#define CHOICE_RUN run_choice_any
#include "backend_cuda/choice.cuh"

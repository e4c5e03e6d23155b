// Launching the kernels; everything a host file needs to know of them.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "backend/cuda/m3_shape.h"
#include "backend/cuda/params.h"

namespace monolayer::cuda {

// Of a ring; with fewer a block would mostly wait.
inline constexpr int kLeastSlots = 8;

// Bytes that down needs in steps of `rows` rows, whatever layer with experts: rows of a pass, and
// the sums of a row group.
int down_bytes(std::span<const Layer> layers, int chosen, int rows);
// Sets x_bytes, slots and what else divides shared memory and its copies for `rows` rows of
// activations of `row_bytes` each (staged, with padding) and down_bytes(); false if they do not
// fit.
bool plan_shared_memory(int rows, int row_bytes, int down_bytes, int limit, Params& params);
// Dynamic shared memory of a launch with these parameters.
int shared_memory(const Params& params);

// Once per device, before any launch: shared memory limits of every kernel.
cudaError_t prepare_kernels(int shared_limit);
// Blocks of the fused kernels for these parameters that fit on one multiprocessor.
cudaError_t fused_occupancy(const Params& params, int* blocks);

// `kernels`: those compiled for MiniMax-M3 are for layers of which kernels_of() says so; the same
// source as those for any shape; they need kLeastM3Blocks (cudaErrorInvalidConfiguration). kEmbed
// exists for any shape only, kHead also for dense layers of more than eight rows (m3_head()),
// kRouter not for dense layers. `blocks`: of every rank in the launch. A stage that exchanges with
// peers is cooperative too.
cudaError_t launch_stage(Stage stage, const Params& params, Kernels kernels, int blocks,
                         cudaStream_t stream);
// A run of layers that are all sparse or all dense. Cooperative: fails instead of hanging if the
// blocks cannot all be resident.
cudaError_t launch_fused(const Params& params, Kernels kernels, int blocks, cudaStream_t stream);

}  // namespace monolayer::cuda

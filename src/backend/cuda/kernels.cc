#include "backend/cuda/kernels.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "backend/cuda/head_plan.h"
#include "backend/cuda/kernel_set.h"

namespace monolayer::cuda {
namespace {

constexpr int kSmallLimit = 195 * 1024;
// Copies on their way into a ring, at most; measured. What blocks tell each other waits behind
// them, so the fused kernel has fewer of weights that it knows long before it uses them. A stage of
// its own tells nobody anything.
constexpr int in_flight(int rows) { return rows > 4 ? 8 : 10; }
constexpr int known_in_flight(int rows) { return rows > kColumns ? 6 : 4; }

// Most rows of the steps that kernels for M3 come for, and those kernels: of sparse layers, of
// dense ones.
struct RowSets {
  int rows;
  const KernelSet& (*sparse)();
  const KernelSet& (*dense)();
};
constexpr RowSets kRowSets[] = {{1, m3_kernels_1, m3_dense_kernels_1},
                                {4, m3_kernels_4, m3_dense_kernels_4},
                                {8, m3_kernels_8, m3_dense_kernels_8},
                                {kMaxRows, m3_kernels_16, m3_dense_kernels_16}};
const RowSets& sets_for(int rows) {
  return *std::find_if(std::begin(kRowSets), std::end(kRowSets) - 1,
                       [rows](const RowSets& sets) { return rows <= sets.rows; });
}
const KernelSet& set_of(Kernels kernels, const Params& params) {
  if (kernels == Kernels::kAny) return any_kernels();
  const RowSets& sets = sets_for(params.most_rows);
  return kernels == Kernels::kDenseM3 ? sets.dense() : sets.sparse();
}

int red_bytes(const Params& params) { return 2 * params.red_entries * 16 * params.red_columns * 4; }

int slots_beside(int x_bytes, int limit, const Params& params) {
  const int bytes = limit - any_kernels().fixed_bytes - x_bytes - red_bytes(params);
  return std::min(bytes / kSlotBytes, kMaxSlots);
}

// A warp may wait for a slot no more than one ring ahead of what has been copied.
int round_of(int slots) {
  int round = kWarps;
  while (round > std::max(slots, 1)) round /= 2;
  return round;
}

}  // namespace

int down_bytes(std::span<const Layer> layers, int chosen, int rows) {
  int most = 0;
  for (const Layer& layer : layers) {
    if (layer.moe == 0) continue;
    most = std::max(most, std::min(rows, kColumns) *
                                  std::max(layer.down.row_bytes, layer.shared_down.row_bytes) +
                              rows * (chosen + 1) * layer.down.parts * kDownSums);
  }
  return most;
}

bool plan_shared_memory(int rows, int row_bytes, int down_bytes, int limit, Params& params) {
  const int columns = std::min(rows, kColumns);
  const int whole = limit;
  // With few rows the ring is deep enough anyway: what it leaves is first-level cache.
  if (columns <= 4) limit = std::min(limit, kSmallLimit);
  params.most_rows = sets_for(rows).rows;
  params.red_columns = red_columns(params.most_rows);
  params.red_entries = red_entries(params.most_rows);
  params.x_bytes = std::max({columns * row_bytes,
                             attention_bytes(params.shape.head_dim, params.shape.kv_fp8 != 0),
                             heads_bytes(params.most_rows), down_bytes - red_bytes(params)});
  params.x_bytes = (params.x_bytes + 127) / 128 * 128;
  params.slots = slots_beside(params.x_bytes, limit, params);
  params.in_flight = std::min(in_flight(rows), params.slots);
  params.known_in_flight = std::min(known_in_flight(rows), params.slots);
  params.round = round_of(params.slots);
  Params dense = params;
  dense.red_columns = dense_red_columns(params.most_rows);
  params.dense_x_bytes =
      std::max({params.x_bytes, rows > kColumns ? kMaxRows * kHalfRowBytes : 0,
                kDenseTeams * dense_attention_bytes(params.shape.head_dim, params.shape.kv_fp8 != 0,
                                                    params.most_rows)});
  params.dense_x_bytes = (params.dense_x_bytes + 127) / 128 * 128;
  params.dense_slots = slots_beside(params.dense_x_bytes, whole, dense);
  return params.slots >= kLeastSlots;
}

namespace {

// As the launch of these kernels wants them.
Params params_for(Kernels kernels, const Params& params) {
  Params p = params;
  if (kernels == Kernels::kDenseM3) {
    p.x_bytes = p.dense_x_bytes;
    p.slots = p.dense_slots;
    p.red_columns = dense_red_columns(p.most_rows);
    p.round = round_of(p.slots);
    // All of its weights are known before, and most of the time goes into reading them.
    p.in_flight = p.known_in_flight = std::min(p.in_flight, p.slots);
  }
  return p;
}

}  // namespace

int shared_memory(const Params& params) {
  return any_kernels().fixed_bytes + params.slots * kSlotBytes + params.x_bytes + red_bytes(params);
}

cudaError_t prepare_kernels(int shared_limit) {
  std::vector<const KernelSet*> all = {&any_kernels()};
  for (const RowSets& sets : kRowSets) all.insert(all.end(), {&sets.sparse(), &sets.dense()});
  for (const KernelSet* set : all) {
    for (int i = 0; i <= kStages; ++i) {
      const void* kernel = i < kStages ? set->stages[i] : set->fused;
      if (kernel == nullptr) continue;
      const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t fused_occupancy(const Params& params, int* blocks) {
  for (const Kernels kernels : {Kernels::kAny, Kernels::kSparseM3, Kernels::kDenseM3}) {
    const Params p = params_for(kernels, params);
    if (kernels == Kernels::kDenseM3 && p.slots < kLeastSlots) continue;
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks, set_of(kernels, p).fused, kBlockThreads,
        static_cast<std::size_t>(shared_memory(p)));
    if (error != cudaSuccess || *blocks < 1) return error;
  }
  return cudaSuccess;
}

namespace {

cudaError_t launch(const void* kernel, const Params& params, int blocks, bool cooperative,
                   cudaStream_t stream) {
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  Params copy = params;
  copy.blocks_divider = divider(blocks);
  copy.rank_blocks = blocks;
  const dim3 grid(static_cast<unsigned>(blocks * std::max(1, params.local_ranks)));
  const dim3 threads(kBlockThreads);
  const auto bytes = static_cast<std::size_t>(shared_memory(params));
  void* arguments[] = {&copy};
  return cooperative ? cudaLaunchCooperativeKernel(kernel, grid, threads, arguments, bytes, stream)
                     : cudaLaunchKernel(kernel, grid, threads, arguments, bytes, stream);
}

}  // namespace

cudaError_t launch_stage(Stage stage, const Params& params, Kernels kernels, int blocks,
                         cudaStream_t stream) {
  if (kernels != Kernels::kAny && blocks < kLeastM3Blocks) return cudaErrorInvalidConfiguration;
  const bool exchanges = params.mail.ranks > 1 && (stage == kOutput || stage == kDown);
  Params alone = params_for(kernels, params);
  alone.known_in_flight = alone.in_flight;
  return launch(set_of(kernels, alone).stages[stage], alone, blocks, exchanges, stream);
}

cudaError_t launch_fused(const Params& params, Kernels kernels, int blocks, cudaStream_t stream) {
  if (kernels != Kernels::kAny && blocks < kLeastM3Blocks) return cudaErrorInvalidConfiguration;
  const int handed = kernels == Kernels::kSparseM3 ? words_of(params.most_rows)
                     : kernels == Kernels::kDenseM3 && params.most_rows > 1
                         ? kMidWords  // sums of squares
                         : 0;
  const int words = kBarrierWords + handed * 4;
  const cudaError_t cleared =
      cudaMemset2DAsync(params.barrier, kHandOffWords * sizeof(std::uint32_t), 0,
                        static_cast<std::size_t>(words) * sizeof(std::uint32_t),
                        static_cast<std::size_t>(std::max(1, params.local_ranks)), stream);
  if (cleared != cudaSuccess) return cleared;
  return launch(set_of(kernels, params).fused, params_for(kernels, params), blocks, true, stream);
}

}  // namespace monolayer::cuda

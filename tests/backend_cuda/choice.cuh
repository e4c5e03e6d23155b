// Of one set of kernels: MONOLAYER_KERNELS and what goes with it, and CHOICE_RUN, which this
// defines.
#include "backend/cuda/device/select.cuh"
#include "backend_cuda/choice.h"

namespace monolayer::test {
namespace {

namespace kernels = cuda::MONOLAYER_KERNELS;

template <int WARPS>
__global__ void choose(Choice choice) {
  kernels::Shared& s = kernels::shared();
  if (threadIdx.x == 0) {
    kernels::divide_memory(0, 0);
    s.params.shape.topk = choice.topk;
    s.params.shape.block_size = choice.block_size;
    s.params.shape.init_blocks = choice.init_blocks;
    s.params.shape.local_blocks = choice.local_blocks;
  }
  if (threadIdx.x < cuda::kWarps) s.states[threadIdx.x] = {};
  __syncthreads();
  kernels::select_blocks<WARPS>(kernels::ScoreKeys{choice.scores, choice.blocks, choice.last_group},
                                choice.blocks);
  const kernels::Context c = kernels::open_context({});
  const kernels::Team<WARPS> team(c);
  if (team.thread < choice.topk)
    choice.ids[team.number * choice.topk + team.thread] =
        kernels::pages_of(kernels::choice_scratch(c, team))[team.thread];
}

template <int WARPS>
cudaError_t run(const Choice& choice, cudaStream_t stream) {
  constexpr int kBytes = kernels::kFixedBytes + 16 * 1024;
  static_assert(cuda::kWarps / WARPS * kernels::kChoiceBytes <= 16 * 1024);
  choose<WARPS><<<1, cuda::kThreads, kBytes, stream>>>(choice);
  return cudaGetLastError();
}

}  // namespace

cudaError_t CHOICE_RUN(const Choice& choice, cudaStream_t stream) {
  return choice.warps == 8 ? run<8>(choice, stream) : run<16>(choice, stream);
}

}  // namespace monolayer::test

// What benches and tests ask of a chain beside its steps: one step repeated and timed, by parts.
#include <cstring>
#include <new>
#include <string>

#include "backend/cuda/bench_kernels.h"
#include "backend/cuda/chain.h"
#include "backend/cuda/pack.h"

namespace monolayer::cuda {
namespace {

constexpr std::uint64_t kHoldNs = 60'000;  // what the host needs to hand a graph over

}  // namespace

void Chain::drop_bench() {
  for (auto& paths : bench_.graphs) {
    for (cudaGraphExec_t& graph : paths) {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
      graph = nullptr;
    }
  }
  if (bench_.begin != nullptr) cudaEventDestroy(bench_.begin);
  if (bench_.end != nullptr) cudaEventDestroy(bench_.end);
  bench_ = {};
}

Status Chain::load(std::span<const cpu::StepSequence> sequences, cpu::CachePool& cache) {
  drop_bench();
  ML_RETURN_IF_ERROR(plan_step(sequences, cache));
  if (plan_.rows() > kMaxRows)
    return {
        Code::kInvalidArgument, "rows",
        std::to_string(plan_.rows()) + ", a timed step has at most " + std::to_string(kMaxRows)};
  ML_RETURN_IF_ERROR(prepare(cache));
  try {
    ML_RETURN_IF_ERROR(upload_step(0, plan_.rows(), false));
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "step", "no host memory for the step"};
  }
  bench_.rows = plan_.rows();
  ML_ASSIGN_OR_RETURN(bench_.sink, DeviceBuffer::create(static_cast<std::size_t>(blocks_) * 512 * 4,
                                                        "CUDA stream"));
  ML_CUDA(cudaEventCreate(&bench_.begin));
  ML_CUDA(cudaEventCreate(&bench_.end));
  return {};
}

Status Chain::bench_graph(Part part, cudaGraphExec_t& exec) {
  Params p = params();
  divide_memory(kColumnPlans[column_plan(bench_.rows)], p);
  const auto count = static_cast<int>(layers().size());
  const auto work = [&]() -> Status {
    if (part == Part::kLayers) {
      int first = 0;
      while (first < count && layers()[static_cast<std::size_t>(first)].moe == 0) ++first;
      return launch_layers(p, first, count);
    }
    return launch(p, count);
  };
  ML_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  const Status status = work();
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream_, &graph);
  if (status.ok() && error == cudaSuccess) {
    const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    return cuda_status(made, "graph");
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  ML_RETURN_IF_ERROR(status);
  return cuda_status(error, "graph capture");
}

Result<double> Chain::time(Part part, bool fused) {
  if (bench_.rows == 0) return Status(Code::kFailedPrecondition, "bench", "no step is loaded");
  fused_ = fused;
  bench_.part = part;
  cudaGraphExec_t& exec = bench_.graphs[static_cast<std::size_t>(part)][fused ? 1 : 0];
  if (exec == nullptr) ML_RETURN_IF_ERROR(bench_graph(part, exec));
  ML_CUDA(hold_stream(kHoldNs, stream_));
  if (part == Part::kLayers) {
    Params p = params();
    divide_memory(kColumnPlans[column_plan(bench_.rows)], p);
    ML_RETURN_IF_ERROR(launch_begin(p));
  }
  ML_CUDA(cudaEventRecord(bench_.begin, stream_));
  ML_CUDA(cudaGraphLaunch(exec, stream_));
  ML_CUDA(cudaEventRecord(bench_.end, stream_));
  ML_CUDA(cudaEventSynchronize(bench_.end));
  ML_RETURN_IF_ERROR(check_record());
  float ms = 0;
  ML_CUDA(cudaEventElapsedTime(&ms, bench_.begin, bench_.end));
  return static_cast<double>(ms) / 1e3;
}

Result<std::uint64_t> Chain::digest() {
  std::uint64_t digest = 0xcbf29ce484222325ULL;
  const auto add = [&](std::uint64_t value) { digest = (digest ^ value) * 0x100000001b3ULL; };
  ML_ASSIGN_OR_RETURN(const auto hidden,
                      download(params().hidden, bench_.rows * config_.hidden_size));
  for (const std::uint16_t value : hidden) add(value);
  if (bench_.part == Part::kLayers) return digest;
  ML_ASSIGN_OR_RETURN(const auto best, download(best_, bench_.rows));
  for (const std::uint64_t value : best) add(value);
  return digest;
}

Result<double> Chain::stream() {
  std::vector<const Layer*> with_experts;
  for (const Layer& layer : layers()) {
    if (layer.moe != 0) with_experts.push_back(&layer);
  }
  if (with_experts.empty() || bench_.rows == 0)
    return Status(Code::kFailedPrecondition, "bench", "no step is loaded, or no layer has experts");
  const Layer& layer =
      *with_experts[static_cast<std::size_t>(bench_.streams++) % with_experts.size()];
  const auto bytes = static_cast<std::uint64_t>(layer.gate_up_stride * params().shape.experts);
  ML_CUDA(hold_stream(kHoldNs, stream_));
  ML_CUDA(cudaEventRecord(bench_.begin, stream_));
  ML_CUDA(
      read_stream(layer.gate_up.data, bytes, bench_.sink.as<std::uint32_t>(), blocks_, stream_));
  ML_CUDA(cudaEventRecord(bench_.end, stream_));
  ML_CUDA(cudaEventSynchronize(bench_.end));
  float ms = 0;
  ML_CUDA(cudaEventElapsedTime(&ms, bench_.begin, bench_.end));
  return static_cast<double>(bytes) / ms * 1e3;
}

BenchChain::Bytes Chain::weight_bytes() const {
  Bytes bytes;
  const DeviceModel& model = ranks_.front()->model();
  bytes.all = model.weight_bytes();
  bytes.head = packed_bytes(model.lm_head());
  for (const Layer& l : model.layers()) {
    const std::int64_t always = packed_bytes(l.qkv) + packed_bytes(l.o) +
                                packed_bytes(l.shared_gate_up) + packed_bytes(l.shared_down);
    if (l.moe == 0) {
      bytes.dense_layer = always;
      continue;
    }
    bytes.sparse_layer = always + packed_bytes(l.router);
    bytes.expert = l.gate_up_stride + l.down_stride;
  }
  return bytes;
}

Result<std::int64_t> Chain::free_bytes() const {
  ML_CUDA(cudaSetDevice(options_.device));
  std::size_t free = 0, total = 0;
  ML_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<std::int64_t>(free);
}

std::int64_t Chain::page_bytes(const cpu::CacheOptions& types) const {
  const m3::ModelConfig& c = ranks_.front()->config();
  const std::int64_t caches = cpu::CachePool::page_bytes(c, types);
  const std::int64_t scores = c.index_heads * (kPageTokens / 16) * 4;
  return caches + kMaxRows * (scores + 4);
}

bool Chain::m3_kernels() const {
  for (const Layer& l : layers()) {
    if (l.moe != 0 && kernels_for(l) != Kernels::kSparseM3) return false;
  }
  return true;
}

}  // namespace monolayer::cuda

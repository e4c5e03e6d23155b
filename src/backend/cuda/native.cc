#include "backend/cuda/native.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/head.h"
#include "backend/cpu/step_plan.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/model.h"
#include "core/dtype.h"
#include "m3/rope.h"

namespace monolayer::cuda {
namespace {

#define ML_CUDA(call) ML_RETURN_IF_ERROR(cuda_status((call), #call))

// What runs in one launch sequence: the step's rows decide how shared memory is divided.
constexpr std::array<int, 4> kColumnPlans{1, 2, 4, 8};

class Chain : public cpu::Native {
 public:
  Chain(const m3::ModelConfig& config, const NativeOptions& options)
      : config_(config), options_(options), rope_(config.rope_theta, config.rotary_dim) {}
  ~Chain() override {
    drop_graphs();
    if (host_step_ != nullptr) cudaFreeHost(host_step_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  Status open(const m3::ModelWeights& weights);
  Status step(std::span<const cpu::StepSequence> sequences, cpu::CachePool& cache,
              std::vector<float>& logits, m3::TraceSink* sink) override;
  const cpu::Traffic& last_traffic() const override { return traffic_; }
  const cpu::Traffic& total_traffic() const override { return traffic_; }
  const cpu::PathCounts& paths() const override { return paths_; }

 private:
  Status bind(const cpu::CachePool& cache);
  Status run_rows(std::int64_t first, std::int64_t rows, std::vector<float>& logits,
                  m3::TraceSink* sink);
  void fill_step(std::int64_t first, std::int64_t rows, bool all_logits);
  bool divide_memory(int rows, Params& p) const;
  Status launch(const Params& p);
  Status launch_layer(Params p, int layer);
  Status launch_fused_run(Params p, int first, int last);
  Status trace(const Params& p, m3::TraceSink& sink);
  Status replay(std::size_t plan);
  Status check_record();
  void drop_graphs();
  template <typename T>
  Status allocate(T*& out, std::int64_t count, const char* what);
  template <typename T>
  Result<std::vector<T>> download(const T* from, std::int64_t count);

  const m3::ModelConfig& config_;
  const NativeOptions options_;
  const m3::Rope rope_;
  std::unique_ptr<DeviceModel> model_;
  cudaStream_t stream_ = nullptr;
  int blocks_ = 0, shared_limit_ = 0;

  cpu::StepPlan plan_;
  cpu::Traffic traffic_;
  cpu::PathCounts paths_;
  const cpu::CachePool* bound_ = nullptr;
  std::vector<DeviceBuffer> buffers_;
  Params params_{};
  std::vector<Layer> layers_;
  Step* host_step_ = nullptr;
  Step* device_step_ = nullptr;
  std::int32_t* device_pages_ = nullptr;
  std::vector<std::int32_t> host_pages_;
  std::array<cudaGraphExec_t, kColumnPlans.size()> graphs_{};
};

std::size_t column_plan(std::int64_t rows) {
  std::size_t i = 0;
  while (i + 1 < kColumnPlans.size() && kColumnPlans[i] < rows) ++i;
  return i;
}

Status Chain::open(const m3::ModelWeights& weights) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0)
    return {Code::kUnsupported, "CUDA", std::string("no device: ") + cudaGetErrorString(found)};
  int major = 0;
  int minor = 0;
  ML_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  ML_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  if (major != 9 || minor != 0)
    return {Code::kUnsupported, "CUDA",
            "the device is sm_" + std::to_string(major) + std::to_string(minor) +
                ", the kernels are for sm_90a"};
  ML_CUDA(cudaDeviceGetAttribute(&blocks_, cudaDevAttrMultiProcessorCount, 0));
  ML_CUDA(cudaDeviceGetAttribute(&shared_limit_, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  ML_CUDA(prepare_kernels(shared_limit_));
  ML_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  ML_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host_step_), sizeof(Step)));
  ML_ASSIGN_OR_RETURN(model_, DeviceModel::create(config_, weights));
  return {};
}

template <typename T>
Status Chain::allocate(T*& out, std::int64_t count, const char* what) {
  ML_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                      DeviceBuffer::create(static_cast<std::size_t>(count) * sizeof(T), what));
  out = buffer.as<T>();
  buffers_.push_back(std::move(buffer));
  return {};
}

template <typename T>
Result<std::vector<T>> Chain::download(const T* from, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  ML_CUDA(cudaMemcpyAsync(values.data(), from, values.size() * sizeof(T), cudaMemcpyDeviceToHost,
                          stream_));
  ML_CUDA(cudaStreamSynchronize(stream_));
  return values;
}

void Chain::drop_graphs() {
  for (cudaGraphExec_t& graph : graphs_) {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
    graph = nullptr;
  }
}

// Caches and step buffers for a pool of this shape.
Status Chain::bind(const cpu::CachePool& cache) {
  drop_graphs();
  bound_ = nullptr;
  buffers_.clear();
  const m3::ModelConfig& c = config_;
  const cpu::CacheOptions& options = cache.options();
  Params p{};
  Shape& s = p.shape;
  const auto n = [](std::int64_t v) { return static_cast<std::int32_t>(v); };
  s.hidden = n(c.hidden_size);
  s.heads = n(c.num_heads);
  s.kv_heads = n(c.num_kv_heads);
  s.group = n(c.group_size());
  s.head_dim = n(c.head_dim);
  s.rotary = n(c.rotary_dim);
  s.index_heads = n(c.index_heads);
  s.index_dim = n(c.index_dim);
  s.block_size = n(c.block_size);
  s.topk = n(c.topk_blocks);
  s.init_blocks = n(c.init_blocks);
  s.local_blocks = n(c.local_blocks);
  s.experts = n(c.num_experts);
  s.chosen = n(c.experts_per_token);
  s.expert_width = n(c.expert_width);
  s.mid_width = n(std::max({c.expert_width, c.shared_width, c.dense_width}));
  s.vocab = n(c.vocab_size);
  s.q_at = 0;
  s.k_at = n(c.q_width());
  s.v_at = s.k_at + n(c.kv_width());
  s.index_q_at = s.v_at + n(c.kv_width());
  s.index_k_at = s.index_q_at + n(c.index_width());
  s.projected = c.any_sparse() ? s.index_k_at + n(c.index_dim) : s.index_q_at;
  s.kv_fp8 = options.kv == DType::kE4M3 ? 1 : 0;
  s.index_fp8 = options.index == DType::kE4M3 ? 1 : 0;
  s.eps = c.rms_eps;
  s.routed_scale = c.routed_scale;
  s.alpha = c.swiglu_alpha;
  s.limit = c.swiglu_limit;
  s.beta = c.swiglu_beta;
  s.k_scale = options.k_scale;
  s.v_scale = options.v_scale;
  s.index_scale = options.index_scale;
  s.score_scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim)) * options.k_scale;

  const std::int64_t pages = cache.pages();
  layers_ = model_->layers();
  const std::int64_t kv_bytes = pages * c.num_kv_heads * kPageTokens * c.head_dim *
                                static_cast<std::int64_t>(dtype_size(options.kv));
  const std::int64_t index_bytes =
      pages * kPageTokens * c.index_dim * static_cast<std::int64_t>(dtype_size(options.index));
  for (Layer& layer : layers_) {
    ML_RETURN_IF_ERROR(allocate(layer.k_cache, kv_bytes, "CUDA caches"));
    ML_RETURN_IF_ERROR(allocate(layer.v_cache, kv_bytes, "CUDA caches"));
    if (layer.sparse != 0)
      ML_RETURN_IF_ERROR(allocate(layer.index_cache, index_bytes, "CUDA caches"));
  }
  Layer* device_layers = nullptr;
  ML_RETURN_IF_ERROR(
      allocate(device_layers, static_cast<std::int64_t>(layers_.size()), "CUDA layers"));
  ML_CUDA(cudaMemcpy(device_layers, layers_.data(), layers_.size() * sizeof(Layer),
                     cudaMemcpyHostToDevice));
  p.layers = device_layers;
  p.embed = model_->embed();
  p.final_norm = model_->final_norm();
  p.lm_head = model_->lm_head();
  p.table_stride = n(pages);
  p.score_stride = n(pages * (kPageTokens / 16));
  p.max_chunks = n(std::max<std::int64_t>(pages, c.topk_blocks));
  const std::int64_t rows = kMaxRows;
  ML_RETURN_IF_ERROR(allocate(device_step_, 1, "CUDA step"));
  ML_RETURN_IF_ERROR(allocate(device_pages_, rows * pages, "CUDA block tables"));
  p.step = device_step_;
  p.pages = device_pages_;
  ML_RETURN_IF_ERROR(allocate(p.hidden, rows * c.hidden_size, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.middle, rows * c.hidden_size, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.normed, rows * c.hidden_size, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.projected, rows * s.projected, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.q, rows * c.q_width(), "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.scores, rows * c.index_heads * p.score_stride, "CUDA scores"));
  ML_RETURN_IF_ERROR(allocate(p.block_ids, rows * c.index_heads * c.topk_blocks, "CUDA scores"));
  ML_RETURN_IF_ERROR(allocate(
      p.partials, rows * c.num_kv_heads * p.max_chunks * partial_floats(s.group, s.head_dim),
      "CUDA attention partials"));
  ML_RETURN_IF_ERROR(allocate(p.attended, rows * c.q_width(), "CUDA activations"));
  ML_RETURN_IF_ERROR(
      allocate(p.router, kRouterParts * rows * (c.num_experts + 16), "CUDA activations"));
  ML_RETURN_IF_ERROR(
      allocate(p.mid, rows * (c.experts_per_token + 1) * s.mid_width, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.table, 1, "CUDA activations"));
  ML_RETURN_IF_ERROR(
      allocate(p.carry, static_cast<std::int64_t>(blocks_) * rows * 16 * 8, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.logits, rows * c.vocab_size, "CUDA activations"));
  ML_RETURN_IF_ERROR(allocate(p.barrier, kBarrierWords, "CUDA barrier"));
  ML_RETURN_IF_ERROR(allocate(p.record, 1, "CUDA barrier"));
  ML_CUDA(cudaMemset(p.record, 0, sizeof(Record)));
  p.deadline_ns = options_.deadline_ns;
  p.stall_block = options_.stall_block;
  p.stall_stage = -1;
  params_ = p;

  for (const int columns : kColumnPlans) {
    Params planned = p;
    if (!divide_memory(columns, planned))
      return {Code::kUnsupported, "CUDA",
              "activations of " + std::to_string(columns) + " rows leave no room for weights in " +
                  std::to_string(shared_limit_) + " bytes of shared memory"};
    if (options_.path != Path::kMono) continue;
    int resident = 0;
    ML_CUDA(fused_occupancy(shared_memory(planned), &resident));
    if (resident < 1)
      return {Code::kUnsupported, "CUDA",
              "the fused kernel needs one resident block per multiprocessor, none fits"};
  }
  bound_ = &cache;
  return {};
}

bool Chain::divide_memory(int rows, Params& p) const {
  return plan_shared_memory(rows, std::max(model_->hidden_row_bytes(), model_->other_row_bytes()),
                            attention_bytes(p.shape.head_dim, p.shape.kv_fp8 != 0), shared_limit_,
                            p);
}

void Chain::fill_step(std::int64_t first, std::int64_t rows, bool all_logits) {
  Step& s = *host_step_;
  std::memset(&s, 0, sizeof s);
  s.rows = static_cast<std::int32_t>(rows);
  std::vector<std::int32_t> table_of;  // sequence ids in the order of their tables
  std::int64_t deepest = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const cpu::PlannedRow& row = plan_.row(first + r);
    const auto i = static_cast<std::size_t>(r);
    s.token[i] = row.token;
    s.position[i] = static_cast<std::int32_t>(row.position);
    deepest = std::max(deepest, row.position);
    if (table_of.empty() || table_of.back() != row.sequence) {
      const auto& pages = plan_.sequences()[static_cast<std::size_t>(row.sequence)].pages;
      const auto at = static_cast<std::ptrdiff_t>(table_of.size()) * params_.table_stride;
      std::copy(pages.begin(), pages.end(), host_pages_.begin() + at);
      table_of.push_back(row.sequence);
    }
    s.table[i] = static_cast<std::int32_t>(table_of.size()) - 1;
    rope_.angles(row.position, s.rope[i], s.rope[i] + rope_.pairs());
  }
  s.max_groups = static_cast<std::int32_t>(deepest / 16 + 1);
  s.max_chunks[0] = static_cast<std::int32_t>(deepest / kPageTokens + 1);
  if (config_.any_sparse()) {
    const std::int64_t blocks = deepest / config_.block_size + 1;
    s.max_chunks[1] = static_cast<std::int32_t>(std::min(blocks, config_.topk_blocks));
    s.score = blocks > config_.topk_blocks ? 1 : 0;
  }
  for (std::int64_t i = 0; i < plan_.logit_rows(); ++i) {
    const std::int64_t row = plan_.logit_row(i);
    if (all_logits || row < first || row >= first + rows) continue;
    s.logit_row[s.logit_rows++] = static_cast<std::int32_t>(row - first);
  }
  if (all_logits) {
    s.logit_rows = s.rows;
    for (int r = 0; r < s.rows; ++r) s.logit_row[r] = r;
  }
}

Status Chain::launch_layer(Params p, int layer) {
  p.first_layer = layer;
  p.last_layer = layer + 1;
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  for (int stage = kQkv; stage <= kDown; ++stage) {
    if (stage == kShared || (stage == kRouter && l.moe == 0)) continue;
    ML_CUDA(launch_stage(static_cast<Stage>(stage), p, m3_layer(p.shape, l), blocks_, stream_));
  }
  return {};
}

Status Chain::launch_fused_run(Params p, int first, int last) {
  p.first_layer = first;
  p.last_layer = last;
  ML_CUDA(cudaMemsetAsync(p.barrier, 0, kBarrierWords * sizeof(std::uint32_t), stream_));
  const bool m3 = std::all_of(layers_.begin() + first, layers_.begin() + last,
                              [&](const Layer& l) { return m3_layer(p.shape, l); });
  ML_CUDA(launch_fused(p, m3, blocks_, stream_));
  return {};
}

// Everything between the upload of the step and the logits.
Status Chain::launch(const Params& p) {
  ML_CUDA(launch_stage(kEmbed, p, false, blocks_, stream_));
  const auto count = static_cast<int>(layers_.size());
  const auto fusible = [&](int i) {
    const Layer& l = layers_[static_cast<std::size_t>(i)];
    return l.sparse != 0 && l.moe != 0;
  };
  for (int i = 0; i < count;) {
    int end = i;
    while (end < count && fusible(end)) ++end;
    if (options_.path == Path::kMono && end > i) {
      ML_RETURN_IF_ERROR(launch_fused_run(p, i, end));
      i = end;
    } else {
      ML_RETURN_IF_ERROR(launch_layer(p, i++));
    }
  }
  ML_CUDA(launch_stage(kHead, p, false, blocks_, stream_));
  return {};
}

Status Chain::trace(const Params& p, m3::TraceSink& sink) {
  const Step& s = *host_step_;
  const std::int64_t hidden = config_.hidden_size;
  std::vector<float> row(static_cast<std::size_t>(hidden));
  const auto show = [&](std::int64_t layer, const std::vector<std::uint16_t>& values) {
    for (std::int64_t r = 0; r < s.rows; ++r) {
      for (std::int64_t i = 0; i < hidden; ++i) {
        row[static_cast<std::size_t>(i)] =
            bf16_to_f32(values[static_cast<std::size_t>(r * hidden + i)]);
      }
      sink.hidden(layer, s.position[r], row);
    }
  };
  ML_CUDA(launch_stage(kEmbed, p, false, blocks_, stream_));
  for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
    ML_ASSIGN_OR_RETURN(const auto entering, download(p.hidden, s.rows * hidden));
    show(layer, entering);
    const Layer& l = layers_[static_cast<std::size_t>(layer)];
    if (options_.path == Path::kMono && l.sparse != 0 && l.moe != 0) {
      ML_RETURN_IF_ERROR(launch_fused_run(p, static_cast<int>(layer), static_cast<int>(layer) + 1));
    } else {
      ML_RETURN_IF_ERROR(launch_layer(p, static_cast<int>(layer)));
    }
    if (l.sparse != 0) {
      const std::int64_t per_row = config_.index_heads * config_.topk_blocks;
      ML_ASSIGN_OR_RETURN(const auto ids, download(p.block_ids, s.rows * per_row));
      for (std::int64_t r = 0; r < s.rows; ++r) {
        const std::int64_t count =
            std::min(config_.topk_blocks, s.position[r] / config_.block_size + 1);
        for (std::int64_t head = 0; head < config_.index_heads; ++head) {
          sink.blocks(layer, s.position[r], head,
                      {ids.data() + r * per_row + head * config_.topk_blocks,
                       static_cast<std::size_t>(count)},
                      {});
        }
      }
    }
    if (l.moe == 0) continue;
    ML_ASSIGN_OR_RETURN(const auto table, download(p.table, 1));
    for (std::int64_t r = 0; r < s.rows; ++r) {
      sink.experts(layer, s.position[r],
                   {table[0].chosen[r], static_cast<std::size_t>(config_.experts_per_token)}, {});
    }
  }
  ML_CUDA(launch_stage(kHead, p, false, blocks_, stream_));
  ML_ASSIGN_OR_RETURN(const auto normed, download(p.normed, s.rows * hidden));
  show(config_.num_layers, normed);
  return {};
}

// Captured at the first use of a plan; the same launches afterwards.
Status Chain::replay(std::size_t plan) {
  Params p = params_;
  divide_memory(kColumnPlans[plan], p);
  if (!options_.graphs) return launch(p);
  if (graphs_[plan] == nullptr) {
    ML_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const Status status = launch(p);
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream_, &graph);
    if (!status.ok() || error != cudaSuccess) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      ML_RETURN_IF_ERROR(status);
      return cuda_status(error, "graph capture");
    }
    const cudaError_t made = cudaGraphInstantiate(&graphs_[plan], graph, 0);
    cudaGraphDestroy(graph);
    ML_RETURN_IF_ERROR(cuda_status(made, "graph"));
  }
  ML_CUDA(cudaGraphLaunch(graphs_[plan], stream_));
  return {};
}

Status Chain::check_record() {
  if (options_.path != Path::kMono) return {};
  ML_ASSIGN_OR_RETURN(const auto record, download(params_.record, 1));
  const Record& r = record[0];
  if (r.set == 0) return {};
  ML_CUDA(cudaMemset(params_.record, 0, sizeof(Record)));
  return {Code::kInternal, "fused kernel",
          "block " + std::to_string(r.block) + " gave up waiting in layer " +
              std::to_string(r.layer) + ", stage " + std::to_string(r.stage) + ": expected " +
              std::to_string(r.expected) + " arrivals, saw " + std::to_string(r.seen)};
}

Status Chain::run_rows(std::int64_t first, std::int64_t rows, std::vector<float>& logits,
                       m3::TraceSink* sink) {
  fill_step(first, rows, sink != nullptr);
  ML_CUDA(cudaMemcpyAsync(device_pages_, host_pages_.data(), host_pages_.size() * 4,
                          cudaMemcpyHostToDevice, stream_));
  ML_CUDA(cudaMemcpyAsync(device_step_, host_step_, sizeof(Step), cudaMemcpyHostToDevice, stream_));
  if (sink != nullptr) {
    Params p = params_;
    divide_memory(kMaxRows, p);
    ML_RETURN_IF_ERROR(trace(p, *sink));
  } else {
    ML_RETURN_IF_ERROR(replay(column_plan(rows)));
  }
  const std::int64_t vocab = config_.vocab_size;
  ML_ASSIGN_OR_RETURN(const auto values, download(params_.logits, host_step_->logit_rows * vocab));
  ML_RETURN_IF_ERROR(check_record());
  std::int64_t own = 0;
  for (std::int64_t i = 0; i < plan_.logit_rows(); ++i) {
    const std::int64_t row = plan_.logit_row(i) - first;
    if (row < 0 || row >= rows) continue;
    const std::int64_t from = sink != nullptr ? row : own++;
    std::copy_n(values.begin() + from * vocab, vocab, logits.begin() + i * vocab);
  }
  return {};
}

Status Chain::step(std::span<const cpu::StepSequence> sequences, cpu::CachePool& cache,
                   std::vector<float>& logits, m3::TraceSink* sink) {
  if (!cache.fits(config_))
    return {Code::kInvalidArgument, "cache", "the pool was made for another model"};
  try {
    ML_RETURN_IF_ERROR(plan_.build(sequences, config_, cache));
    if (bound_ != &cache) ML_RETURN_IF_ERROR(bind(cache));
    host_pages_.assign(
        static_cast<std::size_t>(kMaxRows) * static_cast<std::size_t>(params_.table_stride), 0);
    logits.resize(static_cast<std::size_t>(plan_.logit_rows() * config_.vocab_size));
    for (std::int64_t first = 0; first < plan_.rows(); first += kMaxRows) {
      ML_RETURN_IF_ERROR(
          run_rows(first, std::min<std::int64_t>(kMaxRows, plan_.rows() - first), logits, sink));
    }
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "step", "no host memory for the step"};
  }
  const std::int64_t bad =
      cpu::first_non_finite(logits, {0, static_cast<std::int64_t>(logits.size())});
  if (bad < 0) {
    if (options_.path == Path::kMono) {
      ++paths_.mono;
    } else {
      ++paths_.native;
      paths_.why_native = "the native chain was asked for";
    }
    return {};
  }
  const cpu::PlannedRow& row = plan_.row(plan_.logit_row(bad / config_.vocab_size));
  return {Code::kInternal, "logits",
          "not finite at position " + std::to_string(row.position) + " of sequence " +
              std::to_string(row.sequence)};
}

}  // namespace

Result<std::unique_ptr<cpu::Native>> create_native(const m3::ModelConfig& config,
                                                   const m3::ModelWeights& weights,
                                                   const NativeOptions& options) {
  auto chain = std::make_unique<Chain>(config, options);
  ML_RETURN_IF_ERROR(chain->open(weights));
  return std::unique_ptr<cpu::Native>(std::move(chain));
}

}  // namespace monolayer::cuda

#include "backend/cuda/draft.h"

#include <new>
#include <string>
#include <utility>

#include "backend/cuda/draft_chain.h"

namespace monolayer::cuda {

Status CudaDraft::upload(std::initializer_list<const TensorView*> tensors,
                         const std::uint16_t*& out) {
  std::size_t bytes = 0;
  for (const TensorView* tensor : tensors) bytes += tensor->bytes;
  ML_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::create(bytes, "CUDA draft weights"));
  out = buffer.as<std::uint16_t>();
  auto* to = buffer.as<std::byte>();
  for (const TensorView* tensor : tensors) {
    ML_CUDA(cudaMemcpy(to, tensor->data, tensor->bytes, cudaMemcpyHostToDevice));
    to += tensor->bytes;
  }
  buffers_.push_back(std::move(buffer));
  return {};
}

// Zeros, so that rows a product makes beside those of a step are at least the same every time.
template <typename T>
Status CudaDraft::allocate(T*& out, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  ML_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::create(bytes, "CUDA draft activations"));
  ML_CUDA(cudaMemset(buffer.as<T>(), 0, bytes));
  out = buffer.as<T>();
  buffers_.push_back(std::move(buffer));
  return {};
}

Status CudaDraft::open(const m3::DraftWeights& w, const TensorView& head) {
  ML_CUDA(cudaSetDevice(options_.device));
  ML_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  vocab_ = head.shape[0];
  ML_RETURN_IF_ERROR(upload({&w.fc}, fc_));
  ML_RETURN_IF_ERROR(upload({&w.q, &w.k, &w.v}, qkv_));
  ML_RETURN_IF_ERROR(upload({&w.o}, o_));
  ML_RETURN_IF_ERROR(upload({&w.gate, &w.up}, gate_up_));
  ML_RETURN_IF_ERROR(upload({&w.down}, down_));
  ML_RETURN_IF_ERROR(upload({&head}, head_));
  ML_RETURN_IF_ERROR(upload({&w.fc_norms[0], &w.fc_norms[1], &w.fc_norms[2]}, fc_norms_));
  ML_RETURN_IF_ERROR(upload({&w.input_norm, &w.hidden_norm}, input_norms_));
  ML_RETURN_IF_ERROR(upload({&w.post_norm}, post_norm_));
  ML_RETURN_IF_ERROR(upload({&w.final_norm}, final_norm_));
  ML_RETURN_IF_ERROR(open_buffers());
  // Copies from pageable memory may end after their call, and the stream does not wait for them.
  ML_CUDA(cudaDeviceSynchronize());
  return {};
}

Status CudaDraft::open_buffers() {
  const m3::ModelConfig& c = shape_;
  const std::int64_t rows = kDraftRows, n = c.hidden_size;
  const std::int64_t entering = rows * static_cast<std::int64_t>(m3::kAuxLayers) * n;
  ML_RETURN_IF_ERROR(allocate(rows_, 1));
  ML_RETURN_IF_ERROR(allocate(angles_, rows * c.head_dim));
  ML_RETURN_IF_ERROR(allocate(entering_, entering));
  ML_RETURN_IF_ERROR(allocate(wide_, entering));
  ML_RETURN_IF_ERROR(allocate(projected_, rows * (c.q_width() + 2 * c.kv_width())));
  ML_RETURN_IF_ERROR(allocate(q_, rows * c.q_width()));
  ML_RETURN_IF_ERROR(allocate(partials_, rows * c.num_heads * kDraftChunks * (c.head_dim + 2)));
  ML_RETURN_IF_ERROR(allocate(attended_, rows * c.q_width()));
  ML_RETURN_IF_ERROR(allocate(hidden_, rows * n));
  ML_RETURN_IF_ERROR(allocate(normed_, rows * n));
  ML_RETURN_IF_ERROR(allocate(gate_up_out_, rows * 2 * c.dense_width));
  ML_RETURN_IF_ERROR(allocate(mid_, rows * c.dense_width));
  ML_RETURN_IF_ERROR(allocate(device_logits_, rows * vocab_));
  ML_RETURN_IF_ERROR(allocate(best_, rows * kDraftSlices));
  ML_RETURN_IF_ERROR(host_rows_.create(1));
  ML_RETURN_IF_ERROR(host_angles_.create(rows * c.head_dim));
  ML_RETURN_IF_ERROR(host_entering_.create(entering));
  return host_best_.create(rows * kDraftSlices);
}

Status CudaDraft::bind(const cpu::CachePool& cache) {
  if (!cache.fits(shape_) || cache.options().kv != DType::kBF16)
    return {Code::kInvalidArgument, "draft cache", "the pool was made for another draft"};
  ML_CUDA(cudaSetDevice(options_.device));
  if (bound_ == &cache && bound_pages_ == cache.pages()) return {};
  bound_ = nullptr;
  // The old ones first: both may not fit.
  k_cache_ = DeviceBuffer();
  v_cache_ = DeviceBuffer();
  const auto bytes =
      static_cast<std::size_t>(cache.pages() * m3::kPageTokens * shape_.kv_width()) * 2;
  ML_ASSIGN_OR_RETURN(k_cache_, DeviceBuffer::create(bytes, "CUDA draft caches"));
  ML_ASSIGN_OR_RETURN(v_cache_, DeviceBuffer::create(bytes, "CUDA draft caches"));
  const std::int64_t entries = kDraftRows * cache.pages();
  ML_ASSIGN_OR_RETURN(device_tables_, DeviceBuffer::create(static_cast<std::size_t>(entries) * 4,
                                                           "CUDA draft tables"));
  ML_RETURN_IF_ERROR(host_tables_.create(entries));
  bound_pages_ = cache.pages();
  bound_ = &cache;
  return {};
}

namespace {

// The target's own table, where the draft brings none.
Result<TensorView> table_of(const TensorView& own, const QuantizedMatrix& target,
                            const char* what) {
  if (!own.empty()) return own;
  if (target.format == WeightFormat::kPlain && target.weight.dtype == DType::kBF16)
    return target.weight;
  return Status(Code::kUnsupported, std::string(target.weight.name),
                std::string("serves as the draft's ") + what + " and must be BF16 for it");
}

Status check_shape(const m3::DraftConfig& c) {
  const std::pair<const char*, std::int64_t> widths[] = {
      {"hidden_size", c.hidden_size},
      {"head_dim", c.head_dim},
      {"intermediate_size", c.intermediate_size}};
  for (const auto& [field, width] : widths) {
    if (width % 8 != 0)
      return {Code::kUnsupported, field,
              "of the draft is " + std::to_string(width) + ", on CUDA a multiple of 8"};
  }
  if (c.head_dim > kMaxDraftHead)
    return {Code::kUnsupported, "head_dim",
            "of the draft is " + std::to_string(c.head_dim) + ", on CUDA at most " +
                std::to_string(kMaxDraftHead)};
  return {};
}

}  // namespace

Result<std::unique_ptr<cpu::Draft>> create_draft(const m3::DraftConfig& config,
                                                 const m3::DraftWeights& weights,
                                                 const m3::ModelConfig& target_config,
                                                 const m3::ModelWeights& target,
                                                 const DraftOptions& options) {
  ML_RETURN_IF_ERROR(check_shape(config));
  try {
    ML_ASSIGN_OR_RETURN(const TensorView embed, table_of(weights.embed, target.embed, "embedding"));
    ML_ASSIGN_OR_RETURN(const TensorView head, table_of(weights.lm_head, target.lm_head, "head"));
    auto draft = std::make_unique<CudaDraft>(config, target_config, weights, embed, options);
    ML_RETURN_IF_ERROR(draft->open(weights, head));
    return std::unique_ptr<cpu::Draft>(std::move(draft));
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "draft", "no host memory for its tables");
  }
}

}  // namespace monolayer::cuda

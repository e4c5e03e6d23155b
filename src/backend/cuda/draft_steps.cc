#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "backend/cuda/draft_chain.h"
#include "core/dtype.h"

namespace monolayer::cuda {

Status CudaDraft::combine(std::span<const float> kept, float* out) {
  const std::int64_t n = shape_.hidden_size;
  const auto wide = static_cast<std::int64_t>(m3::kAuxLayers) * n;
  const std::int64_t all = static_cast<std::int64_t>(kept.size()) / wide;
  ML_CUDA(cudaSetDevice(options_.device));
  for (std::int64_t first = 0; first < all; first += kDraftRows) {
    const std::int64_t rows = std::min<std::int64_t>(kDraftRows, all - first);
    const float* from = kept.data() + first * wide;
    std::transform(from, from + rows * wide, host_entering_.get(), f32_to_bf16);
    ML_CUDA(cudaMemcpyAsync(entering_, host_entering_.get(),
                            static_cast<std::size_t>(rows * wide) * 2, cudaMemcpyHostToDevice,
                            stream_));
    const auto count = static_cast<int>(rows);
    const auto columns = static_cast<int>(wide);
    ML_CUDA(draft_norm({entering_, wide, fc_norms_, wide_, static_cast<int>(n), shape_.rms_eps},
                       count, static_cast<int>(m3::kAuxLayers), stream_));
    ML_CUDA(draft_product({fc_, static_cast<int>(n), columns, wide_, normed_, n},
                          DraftOut::kRounded, count, stream_));
    ML_CUDA(cudaMemcpyAsync(host_entering_.get(), normed_, static_cast<std::size_t>(rows * n) * 2,
                            cudaMemcpyDeviceToHost, stream_));
    ML_CUDA(cudaStreamSynchronize(stream_));
    std::transform(host_entering_.get(), host_entering_.get() + rows * n, out + first * n,
                   bf16_to_f32);
  }
  return {};
}

Status CudaDraft::step(std::span<const cpu::DraftSequence> sequences, cpu::CachePool& cache,
                       std::vector<cpu::Proposal>& proposals) {
  proposals.clear();
  logits_.clear();
  inputs_.clear();
  try {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const cpu::DraftSequence& s = sequences[i];
      if (s.start < 1 || s.hidden == nullptr)
        return {Code::kInvalidArgument, "draft sequence " + std::to_string(i),
                "begins at place " + std::to_string(s.start) + ", entries begin at 1"};
      inputs_.push_back({s.tokens, s.start, s.pages, s.proposes ? 1 : 0});
    }
    ML_RETURN_IF_ERROR(bind(cache));
    ML_RETURN_IF_ERROR(plan_.build(inputs_, shape_, cache));
    for (const cpu::PlannedSequence& s : plan_.sequences()) {
      if (static_cast<std::int64_t>(s.pages.size()) > bound_pages_)
        return {Code::kInvalidArgument, "draft sequence",
                "uses " + std::to_string(s.pages.size()) + " pages, at most the pool's " +
                    std::to_string(bound_pages_) + " fit a table on the device"};
    }
    for (std::int64_t first = 0; first < plan_.rows(); first += kDraftRows) {
      const Status done = step_rows(sequences, first, proposals);
      if (done.ok()) continue;
      proposals.clear();  // also those of rows before
      return done;
    }
  } catch (const std::bad_alloc&) {
    proposals.clear();
    return {Code::kResourceExhausted, "draft", "no host memory for the step"};
  }
  return {};
}

// Rows from `first` on, as many as the kernels take at once; their proposals are appended.
Status CudaDraft::step_rows(std::span<const cpu::DraftSequence> sequences, std::int64_t first,
                            std::vector<cpu::Proposal>& proposals) {
  const auto rows = static_cast<int>(std::min<std::int64_t>(kDraftRows, plan_.rows() - first));
  ML_RETURN_IF_ERROR(fill(sequences, first, rows));
  int proposing = 0;
  for (std::int64_t i = 0; i < plan_.logit_rows(); ++i) {
    const std::int64_t row = plan_.logit_row(i) - first;
    if (row >= 0 && row < rows) host_rows_->proposing[proposing++] = static_cast<std::int32_t>(row);
  }
  ML_RETURN_IF_ERROR(run(rows, proposing));
  return fetch(first, proposing, proposals);
}

// What rows [first, first + rows) need, into pinned memory.
Status CudaDraft::fill(std::span<const cpu::DraftSequence> sequences, std::int64_t first,
                       int rows) {
  const std::int64_t n = shape_.hidden_size, half = shape_.head_dim / 2;
  DraftRows& s = *host_rows_.get();
  std::memset(&s, 0, sizeof s);
  std::int32_t tables = 0, last = -1;
  std::int64_t deepest = 0;
  for (int r = 0; r < rows; ++r) deepest = std::max(deepest, plan_.row(first + r).position);
  pages_ = static_cast<int>(deepest / m3::kPageTokens) + 1;
  for (int r = 0; r < rows; ++r) {
    const cpu::PlannedRow& row = plan_.row(first + r);
    const auto owner = static_cast<std::size_t>(row.sequence);
    const cpu::PlannedSequence& sequence = plan_.sequences()[owner];
    if (row.sequence != last) {
      // Those up to the deepest row at hand; a sequence may go on in the next rows.
      std::copy_n(sequence.pages.begin(),
                  std::min<std::size_t>(sequence.pages.size(), static_cast<std::size_t>(pages_)),
                  host_tables_.get() + tables * pages_);
      ++tables;
      last = row.sequence;
    }
    s.place[r] = static_cast<std::int32_t>(row.position);
    s.table[r] = tables - 1;
    s.page[r] = row.main.page;
    s.slot[r] = static_cast<std::int32_t>(row.main.token);
    float* angles = host_angles_.get() + r * 2 * half;
    rope_.angles(row.position - 1, angles, angles + half);
    std::uint16_t* to = host_entering_.get() + r * 2 * n;
    std::memcpy(to, embed_.data + static_cast<std::int64_t>(row.token) * n * 2,
                static_cast<std::size_t>(n) * 2);
    const float* hidden = sequences[owner].hidden + (first + r - sequence.first_row) * n;
    std::transform(hidden, hidden + n, to + n, f32_to_bf16);
  }
  ML_CUDA(cudaMemcpyAsync(device_tables_.as<std::int32_t>(), host_tables_.get(),
                          static_cast<std::size_t>(tables * pages_) * 4, cudaMemcpyHostToDevice,
                          stream_));
  ML_CUDA(cudaMemcpyAsync(angles_, host_angles_.get(),
                          static_cast<std::size_t>(rows * 2 * half) * 4, cudaMemcpyHostToDevice,
                          stream_));
  ML_CUDA(cudaMemcpyAsync(entering_, host_entering_.get(),
                          static_cast<std::size_t>(rows * 2 * n) * 2, cudaMemcpyHostToDevice,
                          stream_));
  return {};
}

Status CudaDraft::run(int rows, int proposing) {
  const m3::ModelConfig& c = shape_;
  const auto n = static_cast<int>(c.hidden_size);
  const auto width = static_cast<int>(c.dense_width);
  const auto projected = static_cast<int>(c.q_width() + 2 * c.kv_width());
  const float eps = c.rms_eps;
  ML_CUDA(
      cudaMemcpyAsync(rows_, host_rows_.get(), sizeof(DraftRows), cudaMemcpyHostToDevice, stream_));
  const std::int64_t stride = 2 * c.hidden_size;
  ML_CUDA(draft_norm({entering_, stride, input_norms_, wide_, n, eps}, rows, 2, stream_));
  ML_CUDA(draft_product({qkv_, projected, 2 * n, wide_, projected_, projected}, DraftOut::kFloat,
                        rows, stream_));
  const DraftHeads heads{rows_,
                         projected_,
                         angles_,
                         q_,
                         k_cache_.as<std::uint16_t>(),
                         v_cache_.as<std::uint16_t>(),
                         device_tables_.as<std::int32_t>(),
                         pages_,
                         partials_,
                         attended_,
                         static_cast<int>(c.num_heads),
                         static_cast<int>(c.num_kv_heads),
                         static_cast<int>(c.head_dim)};
  ML_CUDA(draft_heads(heads, rows, stream_));
  if (proposing == 0) return {};  // entries are all that is wanted
  ML_CUDA(draft_attention(heads, proposing, pages_, stream_));
  ML_CUDA(draft_gather(rows_, entering_ + n, stride, hidden_, n, proposing, stream_));
  ML_CUDA(draft_product({o_, n, static_cast<int>(c.q_width()), attended_, hidden_, n},
                        DraftOut::kAdded, proposing, stream_));
  ML_CUDA(draft_norm({hidden_, n, post_norm_, normed_, n, eps}, proposing, 1, stream_));
  ML_CUDA(draft_product({gate_up_, 2 * width, n, normed_, gate_up_out_, 2 * width},
                        DraftOut::kFloat, proposing, stream_));
  ML_CUDA(draft_activation(gate_up_out_, mid_, width, proposing, stream_));
  ML_CUDA(draft_product({down_, n, width, mid_, hidden_, n}, DraftOut::kAdded, proposing, stream_));
  ML_CUDA(draft_norm({hidden_, n, final_norm_, normed_, n, eps}, proposing, 1, stream_));
  const auto vocab = static_cast<int>(vocab_);
  ML_CUDA(draft_product({head_, vocab, n, normed_, device_logits_, vocab}, DraftOut::kFloat,
                        proposing, stream_));
  ML_CUDA(draft_best(device_logits_, vocab, best_, proposing, stream_));
  return {};
}

Status CudaDraft::fetch(std::int64_t first, int proposing, std::vector<cpu::Proposal>& proposals) {
  const std::int64_t n = shape_.hidden_size;
  if (proposing > 0) {
    ML_CUDA(cudaMemcpyAsync(host_best_.get(), best_,
                            static_cast<std::size_t>(proposing) * kDraftSlices * sizeof(DraftBest),
                            cudaMemcpyDeviceToHost, stream_));
    ML_CUDA(cudaMemcpyAsync(host_entering_.get(), normed_,
                            static_cast<std::size_t>(proposing * n) * 2, cudaMemcpyDeviceToHost,
                            stream_));
  }
  ML_CUDA(cudaStreamSynchronize(stream_));
  for (int i = 0; i < proposing; ++i) {
    DraftBest best{0, -1, -1};
    for (int slice = 0; slice < kDraftSlices; ++slice) {  // ascending ids
      const DraftBest& other = host_best_.get()[i * kDraftSlices + slice];
      if (best.bad < 0) best.bad = other.bad;
      if (other.id >= 0 && (best.id < 0 || other.value > best.value))
        best = {other.value, other.id, best.bad};
    }
    if (best.bad >= 0)
      return {Code::kInternal, "draft",
              "logits are not finite at place " +
                  std::to_string(plan_.row(first + host_rows_->proposing[i]).position) +
                  ", token " + std::to_string(best.bad)};
    cpu::Proposal& proposal = proposals.emplace_back();
    proposal.token = target_ids_.empty() ? best.id : target_ids_[static_cast<std::size_t>(best.id)];
    const std::uint16_t* hidden = host_entering_.get() + i * n;
    proposal.hidden.resize(static_cast<std::size_t>(n));
    std::transform(hidden, hidden + n, proposal.hidden.begin(), bf16_to_f32);
  }
  if (options_.keep_logits && proposing > 0) {
    const std::size_t at = logits_.size(), count = static_cast<std::size_t>(proposing * vocab_);
    logits_.resize(at + count);
    ML_CUDA(cudaMemcpy(logits_.data() + at, device_logits_, count * sizeof(float),
                       cudaMemcpyDeviceToHost));
  }
  return {};
}

}  // namespace monolayer::cuda

// What a step gives: the likeliest token of every result row, chosen on the device, and the logits
// of the rows that asked for them.
#include <algorithm>
#include <string>

#include "backend/cpu/likeliest.h"
#include "backend/cpu/partition.h"
#include "backend/cuda/chain.h"
#include "backend/cuda/greedy.h"

namespace monolayer::cuda {

void Chain::fill_results(std::int64_t first, std::int64_t rows, bool all_logits) {
  Step& s = *host_step_;
  result_of_.fill(-1);
  if (all_logits) {
    s.logit_rows = s.rows;
    for (int r = 0; r < s.rows; ++r) s.logit_row[r] = r;
  }
  for (const bool greedy : {false, true}) {
    for (std::int64_t i = 0; i < plan_.logit_rows(); ++i) {
      const std::int64_t row = plan_.logit_row(i) - first;
      if (plan_.is_greedy(i) != greedy || row < 0 || row >= rows) continue;
      const auto at = all_logits ? row : std::int64_t{s.logit_rows++};
      s.logit_row[at] = static_cast<std::int32_t>(row);
      result_of_[static_cast<std::size_t>(at)] = i;
    }
    if (!greedy) wanted_rows_ = s.logit_rows;
  }
}

Status Chain::launch_head(const Params& p, int rows) {
  ML_CUDA(launch_stage(kHead, p, kernels_for_head(p, rows), blocks_, stream_));
  ML_CUDA(cudaMemsetAsync(best_, 0, ranks_.size() * kMaxRows * sizeof(std::uint64_t), stream_));
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Params& own = ranks_[i]->params();
    ML_CUDA(choose_greedy(device_step_, own.logits, p.most_rows, own.shape.vocab,
                          best_ + static_cast<std::ptrdiff_t>(i) * kMaxRows, stream_));
  }
  return {};
}

Status Chain::gather_results(std::int64_t rows) {
  const std::int64_t vocab = config_.vocab_size;
  const std::int64_t each = vocab / group_size();
  const std::int64_t block = rows * each;  // of a rank
  const std::size_t keys = ranks_.size() * kMaxRows;
  ML_CUDA(cudaMemcpyAsync(host_best_, best_, keys * sizeof(std::uint64_t), cudaMemcpyDeviceToHost,
                          stream_));
  for (std::size_t i = 0; i < ranks_.size() && rows > 0; ++i) {
    ML_CUDA(cudaMemcpyAsync(
        shards_ + static_cast<std::ptrdiff_t>(i) * block, ranks_[i]->params().logits,
        static_cast<std::size_t>(block) * sizeof(float), cudaMemcpyDeviceToHost, stream_));
  }
  ML_CUDA(cudaStreamSynchronize(stream_));
  ML_RETURN_IF_ERROR(check_record());
  best_of_.assign(host_best_, host_best_ + keys);
  gathered_from_ = shards_;
  if (options_.group != nullptr) {
    best_of_.resize(static_cast<std::size_t>(group_size()) * kMaxRows);
    ML_RETURN_IF_ERROR(
        options_.group->all_gather(std::as_bytes(std::span<const std::uint64_t>(host_best_, keys)),
                                   std::as_writable_bytes(std::span<std::uint64_t>(best_of_))));
  }
  if (options_.group != nullptr && rows > 0) {
    gathered_.resize(static_cast<std::size_t>(rows * vocab));
    ML_RETURN_IF_ERROR(options_.group->all_gather(
        std::as_bytes(std::span<const float>(shards_, static_cast<std::size_t>(block))),
        std::as_writable_bytes(std::span<float>(gathered_))));
    gathered_from_ = gathered_.data();
  }
  return {};
}

void Chain::copy_logits(std::int64_t row, std::int64_t rows, float* out) const {
  const std::int64_t each = config_.vocab_size / group_size();
  for (std::int64_t shard = 0; shard < group_size(); ++shard) {
    out = std::copy_n(gathered_from_ + (shard_of(shard) * rows + row) * each, each, out);
  }
}

std::uint64_t Chain::likeliest(std::int64_t row) const {
  const std::int64_t each = config_.vocab_size / group_size();
  std::uint64_t best = 0;
  for (std::int64_t shard = 0; shard < group_size(); ++shard) {
    const std::uint64_t key = best_of_[static_cast<std::size_t>(shard_of(shard) * kMaxRows + row)];
    best = std::max(best, cpu::likeliest_moved(key, shard * each));
  }
  return best;
}

// Rows of logits by the team, if there is one: a copy of 16 rows takes one thread over a
// millisecond.
void Chain::take_results(std::vector<float>& logits) {
  std::array<std::int64_t, kMaxRows> copied{};
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < host_step_->logit_rows; ++row) {
    const std::int64_t i = result_of_[static_cast<std::size_t>(row)];
    if (i < 0) continue;
    const std::uint64_t best = likeliest(row);
    likeliest_[static_cast<std::size_t>(i)] = best;
    if (plan_.is_greedy(i)) {
      greedy_ids_[static_cast<std::size_t>(plan_.result_place(i))] = cpu::likeliest_id(best);
    } else {
      copied[static_cast<std::size_t>(count++)] = row;
    }
  }
  const auto copy = [&](cpu::Range range) {
    for (std::int64_t c = range.begin; c < range.end; ++c) {
      const std::int64_t row = copied[static_cast<std::size_t>(c)];
      const std::int64_t i = result_of_[static_cast<std::size_t>(row)];
      copy_logits(row, wanted_rows_, logits.data() + plan_.result_place(i) * config_.vocab_size);
    }
  };
  if (options_.team == nullptr || options_.group != nullptr || count < 2) return copy({0, count});
  options_.team->each([&](int worker) { copy(cpu::share(count, worker, options_.team->size())); });
}

Status Chain::check_results() const {
  for (std::size_t i = 0; i < likeliest_.size(); ++i) {
    if (cpu::likeliest_is_finite(likeliest_[i])) continue;
    const cpu::PlannedRow& row = plan_.row(plan_.logit_row(static_cast<std::int64_t>(i)));
    return {Code::kInternal, "logits",
            "not finite at position " + std::to_string(row.position) + " of sequence " +
                std::to_string(row.sequence) + ", token " +
                std::to_string(cpu::likeliest_id(likeliest_[i]))};
  }
  return {};
}

}  // namespace monolayer::cuda

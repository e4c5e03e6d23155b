#include "backend/cpu/step_plan.h"

#include <algorithm>
#include <string>

namespace monolayer::cpu {
namespace {

using std::to_string;

Status bad(std::size_t sequence, const std::string& message) {
  return {Code::kInvalidArgument, "sequence " + to_string(sequence), message};
}

std::int64_t length(const StepSequence& sequence) {
  return sequence.start + static_cast<std::int64_t>(sequence.tokens.size());
}

std::int64_t pages_for(std::int64_t tokens) {
  return (tokens + m3::kPageTokens - 1) / m3::kPageTokens;
}

}  // namespace

Status StepPlan::check_sequence(const StepSequence& sequence, std::size_t index,
                                const m3::ModelConfig& config) const {
  const auto count = static_cast<std::int64_t>(sequence.tokens.size());
  if (count == 0) return bad(index, "no tokens");
  if (sequence.logit_rows < 0 || sequence.logit_rows > count) {
    return bad(index, "logits of " + to_string(sequence.logit_rows) + " rows asked, it has " +
                          to_string(count));
  }
  if (sequence.start < 0) return bad(index, "start " + to_string(sequence.start) + " is negative");
  if (sequence.start > config.max_positions || count > config.max_positions - sequence.start) {
    return bad(index, to_string(count) + " tokens from position " + to_string(sequence.start) +
                          " exceed the model's " + to_string(config.max_positions) + " positions");
  }
  for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
    const std::int32_t token = sequence.tokens[i];
    if (token < 0 || token >= config.vocab_size) {
      return bad(index, "token " + to_string(i) + " has id " + to_string(token) +
                            ", the vocabulary has " + to_string(config.vocab_size));
    }
  }
  const std::int64_t needed = pages_for(length(sequence));
  if (static_cast<std::int64_t>(sequence.pages.size()) < needed) {
    return bad(index, "block table of " + to_string(sequence.pages.size()) + " pages, " +
                          to_string(length(sequence)) + " tokens need " + to_string(needed));
  }
  return {};
}

// A written page may be in use nowhere else: another reader would see it before or after the write
// depending on timing. Shared prefix pages are only read, and may be shared by any number.
Status StepPlan::check_pages(std::span<const StepSequence> sequences, std::int64_t pool_pages) {
  if (static_cast<std::int64_t>(writers_.size()) < pool_pages) {
    writers_.resize(static_cast<std::size_t>(pool_pages));
  }
  ++step_;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const StepSequence& sequence = sequences[s];
    const std::int64_t used = pages_for(length(sequence));
    for (std::int64_t i = 0; i < used; ++i) {
      const std::int32_t page = sequence.pages[static_cast<std::size_t>(i)];
      if (page < 0 || page >= pool_pages) {
        return bad(s, "block table entry " + to_string(i) + " is page " + to_string(page) +
                          ", the pool has " + to_string(pool_pages));
      }
      if (i < sequence.start / m3::kPageTokens) continue;
      Writer& writer = writers_[static_cast<std::size_t>(page)];
      if (writer.step == step_) {
        return bad(s, "page " + to_string(page) + " is written by entry " + to_string(i) +
                          " and by entry " + to_string(writer.entry) + " of sequence " +
                          to_string(writer.sequence));
      }
      writer = {step_, static_cast<std::int32_t>(s), i};
    }
  }
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const std::int64_t read_only = sequences[s].start / m3::kPageTokens;
    for (std::int64_t i = 0; i < read_only; ++i) {
      const std::int32_t page = sequences[s].pages[static_cast<std::size_t>(i)];
      const Writer& writer = writers_[static_cast<std::size_t>(page)];
      if (writer.step == step_) {
        return bad(s, "page " + to_string(page) + " is read by entry " + to_string(i) +
                          " and written by entry " + to_string(writer.entry) + " of sequence " +
                          to_string(writer.sequence));
      }
    }
  }
  return {};
}

Status StepPlan::build(std::span<const StepSequence> sequences, const m3::ModelConfig& config,
                       const CachePool& cache) {
  if (sequences.empty()) return {Code::kInvalidArgument, "step", "no sequences"};
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    ML_RETURN_IF_ERROR(check_sequence(sequences[s], s, config));
  }
  ML_RETURN_IF_ERROR(check_pages(sequences, cache.pages()));

  rows_.clear();
  sequences_.clear();
  logit_rows_.clear();
  greedy_rows_ = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const StepSequence& in = sequences[s];
    PlannedSequence out;
    out.first_row = rows();
    out.rows = static_cast<std::int64_t>(in.tokens.size());
    out.start = in.start;
    out.pages = in.pages.first(static_cast<std::size_t>(pages_for(length(in))));
    out.index_pages = out.pages;
    out.first_logit_row = logit_rows();
    out.logit_rows = in.logit_rows;
    for (std::int64_t i = 0; i < out.rows; ++i) {
      if (i >= out.rows - out.logit_rows) {
        logit_rows_.push_back({rows(), in.greedy ? greedy_rows() : full_rows(), in.greedy});
        greedy_rows_ += in.greedy ? 1 : 0;
      }
      const std::int64_t position = in.start + i;
      const CacheSlot slot{out.pages[static_cast<std::size_t>(position / m3::kPageTokens)],
                           position % m3::kPageTokens};
      rows_.push_back({in.tokens[static_cast<std::size_t>(i)], static_cast<std::int32_t>(s),
                       position, slot, slot});
    }
    sequences_.push_back(out);
  }
  return {};
}

const PlannedRow& StepPlan::row_of_result(std::int64_t place, bool greedy) const {
  std::int64_t i = 0;
  while (is_greedy(i) != greedy || result_place(i) != place) ++i;
  return row(logit_row(i));
}

std::vector<RowTile> StepPlan::tiles(std::int64_t begin, std::int64_t end,
                                     std::int64_t largest) const {
  std::vector<RowTile> result;
  for (std::int64_t at = begin; at < end;) {
    const auto& sequence = sequences_[static_cast<std::size_t>(row(at).sequence)];
    const std::int64_t stop = std::min({end, sequence.first_row + sequence.rows, at + largest});
    result.push_back({at, stop - at});
    at = stop;
  }
  return result;
}

}  // namespace monolayer::cpu

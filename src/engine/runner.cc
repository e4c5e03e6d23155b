#include "engine/runner.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <string>

namespace monolayer::engine {

bool stops_engine(const Status& status) {
  return status.code() == Code::kDeadlineExceeded || status.code() == Code::kPeerRefused ||
         status.code() == Code::kIoError;
}

Status Runner::run_some(std::span<const ScheduledSequence> items, std::vector<float>& logits) {
  inputs_.clear();
  guessed_.clear();
  guessed_.reserve(items.size());
  for (const ScheduledSequence& item : items) {
    const Sequence& sequence = *item.sequence;
    ML_RETURN_IF_ERROR(blocks_.check_writable(sequence.table, item.start, item.start + item.count));
    cpu::StepSequence input;
    const std::int64_t own = item.count - static_cast<std::int64_t>(item.drafts.size());
    input.tokens =
        std::span(sequence.tokens)
            .subspan(static_cast<std::size_t>(item.start), static_cast<std::size_t>(own));
    if (!item.drafts.empty()) {
      auto& tokens = guessed_.emplace_back(input.tokens.begin(), input.tokens.end());
      tokens.insert(tokens.end(), item.drafts.begin(), item.drafts.end());
      input.tokens = tokens;
    }
    input.start = item.start;
    input.pages = sequence.table.blocks;
    input.logit_rows = item.logit_rows;
    input.greedy = chosen_by_model(item);
    inputs_.push_back(input);
  }
  return model_.step(inputs_, logits);
}

Status Runner::prepare_for(std::int64_t rows, std::int64_t length, std::int64_t logit_rows) {
  constexpr std::int64_t kBlock = m3::kPageTokens;
  try {
    // The end of the longest context; further sequences, where there are blocks, for further rows.
    std::vector<std::int32_t> pages(static_cast<std::size_t>(model_.blocks()));
    std::iota(pages.begin(), pages.end(), 0);
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(rows, length)));
    std::vector<cpu::StepSequence> largest;
    std::int64_t with_logits = 0;
    for (std::int64_t block = 0, left = rows; left > 0;) {
      const std::int64_t blocks = std::min((length + kBlock - 1) / kBlock, model_.blocks() - block);
      const std::int64_t count = std::min({left, length, blocks * kBlock});
      if (count < 1) break;
      cpu::StepSequence sequence;
      sequence.tokens = std::span(tokens).first(static_cast<std::size_t>(count));
      sequence.start = largest.empty() ? length - count : 0;
      sequence.pages = std::span(pages).subspan(static_cast<std::size_t>(block));
      sequence.logit_rows = std::min(logit_rows - with_logits, count);
      with_logits += sequence.logit_rows;
      largest.push_back(sequence);
      left -= count;
      block += blocks;
    }
    logits_.reserve(static_cast<std::size_t>(with_logits * model_.vocab_size()));
    return largest.empty() ? ok_status() : model_.prepare_for(largest);
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "step",
            "no memory for the logits of " + std::to_string(logit_rows) + " rows"};
  }
}

std::vector<Status> Runner::run(const ScheduledStep& step) {
  std::vector<Status> statuses(step.sequences.size());
  results_.clear();
  std::int64_t rows = 0, greedy_rows = 0;
  for (const ScheduledSequence& item : step.sequences) {
    const bool greedy = chosen_by_model(item);
    std::int64_t& count = greedy ? greedy_rows : rows;
    results_.push_back({greedy, count});
    count += item.logit_rows;
  }
  const Status status = run_some(step.sequences, logits_);
  kept_ = model_.kept();
  if (status.ok()) {
    greedy_ids_.assign(model_.greedy_ids().begin(), model_.greedy_ids().end());
    return statuses;
  }
  if (step.sequences.size() == 1 || stops_engine(status)) {
    for (Status& each : statuses) each = status;
    return statuses;
  }
  // Writing the same cache entries again changes nothing, so a second try is safe.
  logits_.assign(static_cast<std::size_t>(rows * model_.vocab_size()), 0.0F);
  greedy_ids_.assign(static_cast<std::size_t>(greedy_rows), 0);
  kept_alone_.clear();
  std::size_t row_size = 0;                                // floats kept of a row
  std::vector<std::size_t> before(step.sequences.size());  // rows of the sequences before
  for (std::size_t i = 1; i < before.size(); ++i)
    before[i] = before[i - 1] + static_cast<std::size_t>(step.sequences[i - 1].count);
  const std::size_t all = before.back() + static_cast<std::size_t>(step.sequences.back().count);
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    statuses[i] = run_some(std::span(step.sequences).subspan(i, 1), alone_);
    if (!statuses[i].ok()) continue;
    const Results& results = results_[i];
    if (results.greedy) {
      const auto ids = model_.greedy_ids();
      std::copy(ids.begin(), ids.end(), greedy_ids_.begin() + results.first);
    } else {
      std::copy(alone_.begin(), alone_.end(),
                logits_.begin() + results.first * model_.vocab_size());
    }
    const std::span<const float> kept = model_.kept();
    row_size = kept.size() / static_cast<std::size_t>(step.sequences[i].count);
    kept_alone_.resize(all * row_size);
    std::copy(kept.begin(), kept.end(),
              kept_alone_.begin() + static_cast<std::ptrdiff_t>(before[i] * row_size));
  }
  kept_ = kept_alone_;
  return statuses;
}

std::span<const float> Runner::logits(std::size_t sequence, std::int64_t row) const {
  const Results& results = results_[sequence];
  if (results.greedy) return {};
  const auto vocab = static_cast<std::size_t>(model_.vocab_size());
  return std::span(logits_).subspan(static_cast<std::size_t>(results.first + row) * vocab, vocab);
}

std::optional<std::int32_t> Runner::greedy_id(std::size_t sequence, std::int64_t row) const {
  const Results& results = results_[sequence];
  if (!results.greedy) return std::nullopt;
  return greedy_ids_[static_cast<std::size_t>(results.first + row)];
}

}  // namespace monolayer::engine

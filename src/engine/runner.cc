#include "engine/runner.h"

#include <algorithm>

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
    inputs_.push_back(input);
  }
  return model_.step(inputs_, logits);
}

std::vector<Status> Runner::run(const ScheduledStep& step) {
  std::vector<Status> statuses(step.sequences.size());
  first_row_.clear();
  std::int64_t rows = 0;
  for (const ScheduledSequence& item : step.sequences) {
    first_row_.push_back(rows);
    rows += item.logit_rows;
  }
  const Status status = run_some(step.sequences, logits_);
  kept_ = model_.kept();
  if (status.ok()) return statuses;
  if (step.sequences.size() == 1 || stops_engine(status)) {
    for (Status& each : statuses) each = status;
    return statuses;
  }
  // Writing the same cache entries again changes nothing, so a second try is safe.
  logits_.assign(static_cast<std::size_t>(rows * model_.vocab_size()), 0.0F);
  kept_alone_.clear();
  std::size_t row_size = 0;                                // floats kept of a row
  std::vector<std::size_t> before(step.sequences.size());  // rows of the sequences before
  for (std::size_t i = 1; i < before.size(); ++i)
    before[i] = before[i - 1] + static_cast<std::size_t>(step.sequences[i - 1].count);
  const std::size_t all = before.back() + static_cast<std::size_t>(step.sequences.back().count);
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    statuses[i] = run_some(std::span(step.sequences).subspan(i, 1), alone_);
    if (!statuses[i].ok()) continue;
    const auto at = static_cast<std::ptrdiff_t>(first_row_[i] * model_.vocab_size());
    std::copy(alone_.begin(), alone_.end(), logits_.begin() + at);
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
  const auto vocab = static_cast<std::size_t>(model_.vocab_size());
  return std::span(logits_).subspan(static_cast<std::size_t>(first_row_[sequence] + row) * vocab,
                                    vocab);
}

}  // namespace monolayer::engine

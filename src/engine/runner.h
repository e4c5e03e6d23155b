// One scheduled step on the model, with the block tables checked against the block manager.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/status.h"
#include "engine/block_manager.h"
#include "engine/scheduler.h"
#include "engine/step_model.h"

namespace monolayer::engine {

// Whether a step's error is everybody's, now and later: a lost peer, a model file that changed.
bool stops_engine(const Status& status);

class Runner {
 public:
  Runner(StepModel& model, const BlockManager& blocks) : model_(model), blocks_(blocks) {}

  // Makes the memory of steps of up to `rows` rows of contexts up to `length`, with logits of up to
  // `logit_rows` rows.
  Status prepare_for(std::int64_t rows, std::int64_t length, std::int64_t logit_rows);
  // Status of each sequence of the step. When a step of several fails, each is run alone, so that
  // one that cannot be computed fails alone, unless its error stops the engine.
  std::vector<Status> run(const ScheduledStep& step);
  // Of the last step: logits of sequence i's logit row r, none where the model chose itself.
  std::span<const float> logits(std::size_t sequence, std::int64_t row) const;
  // Which token that was, or nothing.
  std::optional<std::int32_t> greedy_id(std::size_t sequence, std::int64_t row) const;
  // StepModel::kept() of all rows of the last step, zeros for sequences that failed.
  std::span<const float> kept() const { return kept_; }

 private:
  Status run_some(std::span<const ScheduledSequence> items, std::vector<float>& logits);

  StepModel& model_;
  const BlockManager& blocks_;
  std::vector<cpu::StepSequence> inputs_;
  std::vector<std::vector<std::int32_t>> guessed_;  // tokens of items with guesses
  std::span<const float> kept_;
  std::vector<float> kept_alone_;
  // Whether the model itself chooses the tokens of an item.
  bool chosen_by_model(const ScheduledSequence& item) const {
    return item.greedy && model_.chooses_greedily();
  }

  std::vector<float> logits_, alone_;
  std::vector<std::int32_t> greedy_ids_;
  struct Results {
    bool greedy = false;
    std::int64_t first = 0;  // of logits_, or of greedy_ids_
  };
  std::vector<Results> results_;  // of each sequence
};

}  // namespace monolayer::engine

// EAGLE3 speculation of a batch: guesses before a step, draft entries after it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cpu/draft.h"
#include "core/status.h"
#include "engine/block_manager.h"
#include "engine/scheduler.h"
#include "m3/draft.h"

namespace monolayer::engine {

struct SpeculationOptions {
  std::int64_t tokens = 3;  // guesses a step, 1 to 7
  // Benches only: acceptance by coins instead of by the target. Probability that guesses 1 to i are
  // all accepted, not increasing; empty: acceptance is real.
  std::vector<double> synthetic_rates;
  std::uint64_t synthetic_seed = 0;
  // Tests: what is guessed instead of `guess`, the `index`th of the step.
  std::function<std::int32_t(const Sequence&, std::int64_t index, std::int32_t guess)> rewrite;
};

// kInvalidArgument naming the field and its bound.
Status check_speculation(const SpeculationOptions& options);
// Survival of each position for a mean length in [1, tokens + 1] that counts the target's own
// token: full positions first, then one fraction, then zeros.
Result<std::vector<double>> rates_of_length(double length, std::int64_t tokens);

struct SpeculationStats {
  std::int64_t tokens = 0;  // guesses a step at most; 0: no speculation
  bool synthetic = false;
  std::int64_t steps = 0;  // of single sequences, with at least one guess
  std::int64_t guesses = 0, accepted = 0;
  std::array<std::int64_t, m3::kMostDrafts> accepted_at{};          // by position
  std::array<std::int64_t, m3::kMostDrafts + 1> steps_accepting{};  // by how many were accepted
  std::int64_t failures = 0;  // sequences whose draft gave no numbers and was switched off
};

class Speculator {
 public:
  // Borrows `draft` and `pool`, which has a page for every block of the engine.
  Speculator(const m3::DraftConfig& config, cpu::Draft& draft, cpu::CachePool& pool,
             SpeculationOptions options);

  // Bytes a block needs beside its draft entries.
  static std::int64_t boundary_bytes(const m3::DraftConfig& config);

  std::int64_t tokens() const { return options_.tokens; }
  bool synthetic() const { return stats_.synthetic; }
  std::span<const std::int64_t> layers() const { return config_.aux_layers; }
  const SpeculationOptions& options() const { return options_; }
  const SpeculationStats& stats() const { return stats_; }

  // Fills the guesses of decoding sequences and shortens items that got fewer than scheduled.
  void propose(ScheduledStep& step, const BlockManager& blocks);
  // `kept`: states of all rows of the step, as Native::captured(). Draft entries of prompt pieces
  // whose status is ok become complete.
  void observe(const ScheduledStep& step, std::span<const Status> statuses,
               std::span<const float> kept, const BlockManager& blocks);
  // By coin, in synthetic mode: whether guess `index` of item `row` is taken; otherwise nothing.
  std::optional<bool> coin(std::uint64_t step, std::size_t row, std::int64_t index) const;
  // The first `rows` rows of a decoding item were final. Call before the next step.
  void accept(const ScheduledStep& step, std::size_t item, std::int64_t rows);
  // Makes the memory of steps of up to so many rows, of `sequences` sequences. kResourceExhausted
  // where there is not enough.
  Status prepare_for(std::int64_t rows, std::int64_t sequences);
  // Makes a dead block's draft entries into values no result survives (tests).
  void poison(std::int32_t block);

 private:
  struct Guess {
    ScheduledSequence* item = nullptr;
    std::vector<float> hidden;
  };
  void begin(Sequence& sequence, std::int64_t start) const;
  void keep(Sequence& sequence, std::int64_t position, const float* rows, std::int64_t count);
  bool run(std::span<const cpu::DraftSequence> inputs, std::vector<Sequence*>& owners);
  void guess_first(ScheduledStep& step, const BlockManager& blocks, std::vector<Guess>& guesses);
  void guess_next(std::vector<Guess>& guesses);
  void add(Guess& guess, std::int32_t token);
  void switch_off(Sequence& sequence);

  const m3::DraftConfig& config_;
  cpu::Draft& draft_;
  cpu::CachePool& pool_;
  const SpeculationOptions options_;
  SpeculationStats stats_;
  // State of each block's last position: where a sequence goes on after a prefix hit.
  std::unique_ptr<std::uint16_t[]> boundaries_;
  std::vector<float> combined_;           // [rows of the step, hidden]
  std::vector<std::int64_t> first_rows_;  // of each item
  std::vector<cpu::Proposal> proposals_;
};

}  // namespace monolayer::engine

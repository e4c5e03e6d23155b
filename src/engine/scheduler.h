// What runs in the next step: one budget of tokens, decodes first, then prompts in pieces.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/status.h"
#include "engine/block_manager.h"
#include "engine/sequence.h"

namespace monolayer::engine {

struct SchedulerOptions {
  std::int64_t max_sequences = 256;         // running at once
  std::int64_t max_step_tokens = 2048;      // rows of a step; at least max_sequences + 128
  std::int64_t max_model_len = 0;           // prompt and output of one sequence
  bool chunked_prefill = true;              // false: a prompt is computed in one step or refused
  std::int64_t long_prefill_threshold = 0;  // rows of one prompt in a step; 0: no limit of its own
  std::int64_t speculative_tokens = 0;      // guesses verified beside each decoded token
};

// The rows of one sequence in a step: tokens [start, start + count), where guesses count as tokens.
struct ScheduledSequence {
  Sequence* sequence = nullptr;
  std::int64_t start = 0, count = 0;
  std::int64_t logit_rows = 0;       // the last ones
  bool samples = false;              // the last row gives the next token
  bool greedy = false;               // the likeliest token of each of those rows is all it takes
  std::int64_t wanted_drafts = 0;    // guesses there is room for, counted in `count`
  std::vector<std::int32_t> drafts;  // guesses made, after the sequence's last token
};

struct ScheduledStep {
  std::uint64_t generation = 0;  // counts steps
  std::vector<ScheduledSequence> sequences;
  std::int64_t tokens = 0;
  std::int64_t preempted = 0;
  bool empty() const { return sequences.empty(); }
};

class Scheduler {
 public:
  // kInvalidArgument naming the option and its bound.
  static Status check(const SchedulerOptions& options);
  Scheduler(const SchedulerOptions& options, BlockManager& blocks)
      : options_(options), blocks_(blocks) {}

  // kInvalidArgument, with both figures, for what could never run: longer than the model or the
  // caches take, or than a step when prompts are not cut.
  Status check_schedulable(const Sequence& sequence) const;
  // Queues it last. It must stay where it is until finish().
  void add(Sequence* sequence);
  // Chooses the rows of the next step and gives them their blocks. The newest running sequence
  // goes back to the head of the queue when a block is missing.
  ScheduledStep schedule();
  // The first `rows` rows of `item` (all of them) were computed and final: moves the sequence on
  // and makes full blocks findable whose entries are complete in every cache.
  void complete(const ScheduledSequence& item, std::int64_t rows);
  void complete(const ScheduledSequence& item) { complete(item, item.count); }
  // Takes a sequence out, in any state, and frees its blocks.
  void finish(Sequence* sequence);

  std::int64_t waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t preemptions() const { return preemptions_; }

 private:
  void schedule_decodes(ScheduledStep& step);
  void schedule_prefills(ScheduledStep& step);
  void admit(ScheduledStep& step);
  bool admissible(const Sequence& sequence) const;
  void place(ScheduledStep& step, Sequence* sequence, std::int64_t count, std::int64_t drafts = 0);
  std::int64_t drafts_for(const Sequence& sequence) const;
  std::int64_t chunk(const Sequence& sequence, std::int64_t start, std::int64_t budget) const;
  bool held_back(const Sequence& sequence) const;
  bool take_back_guesses();
  void preempt_newest();

  SchedulerOptions options_;
  BlockManager& blocks_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;  // oldest admission first
  std::uint64_t generation_ = 0;
  std::int64_t preemptions_ = 0;
};

}  // namespace monolayer::engine

#include "engine/scheduler.h"

#include <algorithm>
#include <string>

namespace monolayer::engine {
namespace {

constexpr std::int64_t kBlock = m3::kPageTokens;

std::int64_t blocks_for(std::int64_t tokens) { return (tokens + kBlock - 1) / kBlock; }

Status never(const std::string& what, std::int64_t tokens, const std::string& limit,
             std::int64_t bound) {
  return {Code::kInvalidArgument, what,
          "needs " + std::to_string(tokens) + " tokens, " + limit + " " + std::to_string(bound)};
}

}  // namespace

Status Scheduler::check(const SchedulerOptions& options) {
  if (options.max_sequences < 1)
    return {Code::kInvalidArgument, "max_num_seqs", "must be at least 1"};
  // Every decode and a piece of one prompt: less would starve prompts.
  const std::int64_t decodes = options.max_sequences * (1 + options.speculative_tokens);
  if (options.max_step_tokens < decodes + kBlock)
    return {Code::kInvalidArgument, "max_num_batched_tokens",
            "is " + std::to_string(options.max_step_tokens) + ", must be at least " +
                std::to_string(decodes + kBlock) + " (max_num_seqs" +
                (options.speculative_tokens == 0
                     ? ""
                     : " times " + std::to_string(1 + options.speculative_tokens)) +
                " and one block of " + std::to_string(kBlock) + ")"};
  if (options.long_prefill_threshold != 0 && options.long_prefill_threshold < kBlock)
    return {Code::kInvalidArgument, "long_prefill_token_threshold",
            "must be 0 or at least " + std::to_string(kBlock)};
  return ok_status();
}

Status Scheduler::check_schedulable(const Sequence& sequence) const {
  if (sequence.most_tokens > options_.max_model_len)
    return never("prompt and max_tokens", sequence.most_tokens, "the model length is",
                 options_.max_model_len);
  if (sequence.most_tokens > blocks_.total() * kBlock)
    return never("prompt and max_tokens", sequence.most_tokens, "the caches hold",
                 blocks_.total() * kBlock);
  if (!options_.chunked_prefill && sequence.prompt_tokens > options_.max_step_tokens)
    return never("prompt", sequence.prompt_tokens, "without chunked prefill a step holds",
                 options_.max_step_tokens);
  return ok_status();
}

void Scheduler::add(Sequence* sequence) {
  sequence->state = SequenceState::kWaiting;
  waiting_.push_back(sequence);
}

// Rows of `sequence` from `start` on that fit `budget`; 0 if none should run. Pieces end on block
// borders, so that a chunk's blocks are full and a row's place never depends on the budget.
std::int64_t Scheduler::chunk(const Sequence& sequence, std::int64_t start,
                              std::int64_t budget) const {
  const std::int64_t remaining = sequence.size() - start;
  std::int64_t limit = budget;
  if (options_.long_prefill_threshold > 0) limit = std::min(limit, options_.long_prefill_threshold);
  if (sequence.largest_chunk > 0) limit = std::min(limit, sequence.largest_chunk);
  if (remaining <= limit) return remaining;
  // A preempted sequence may have outgrown the budget: it is cut even where prompts are not.
  if (!options_.chunked_prefill && sequence.size() <= options_.max_step_tokens) return 0;
  const std::int64_t end = (start + limit) / kBlock * kBlock;
  return std::max<std::int64_t>(end - start, 0);
}

void Scheduler::place(ScheduledStep& step, Sequence* sequence, std::int64_t count,
                      std::int64_t drafts) {
  ScheduledSequence item;
  item.sequence = sequence;
  item.start = sequence->computed;
  item.count = count;
  item.samples = item.start + count >= sequence->size();
  item.wanted_drafts = drafts;
  item.logit_rows = item.samples ? 1 + drafts : 0;
  if (sequence->all_logits && item.start < sequence->prompt_tokens) item.logit_rows = count;
  step.sequences.push_back(item);
  step.tokens += count;
}

// Blocks that only guesses of earlier steps had needed; false if there were none.
bool Scheduler::take_back_guesses() {
  const std::int64_t before = blocks_.available();
  for (Sequence* sequence : running_)
    if (sequence->state == SequenceState::kDecode)
      blocks_.shrink(sequence->table, blocks_for(sequence->size()));
  return blocks_.available() > before;
}

void Scheduler::preempt_newest() {
  Sequence* newest = running_.back();
  running_.pop_back();
  blocks_.release(newest->table);
  newest->computed = 0;
  newest->draft = {};
  newest->state = SequenceState::kWaiting;
  ++newest->preemptions;
  ++preemptions_;
  waiting_.push_front(newest);
}

// As many as may still become part of the answer.
std::int64_t Scheduler::drafts_for(const Sequence& sequence) const {
  if (sequence.draft.off) return 0;
  return std::clamp<std::int64_t>(sequence.most_tokens - sequence.size() - 1, 0,
                                  options_.speculative_tokens);
}

void Scheduler::schedule_decodes(ScheduledStep& step) {
  // Oldest first: whoever must give way is younger than everybody already served.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence* sequence = running_[i];
    if (sequence->state != SequenceState::kDecode) continue;
    while (i < running_.size() && !blocks_.extend(sequence->table, blocks_for(sequence->size()))) {
      if (take_back_guesses()) continue;
      preempt_newest();
      ++step.preempted;
    }
  }
  // Nobody gives way for a guess: guesses get what is left once every token has its place.
  for (Sequence* sequence : running_) {
    if (sequence->state != SequenceState::kDecode) continue;
    std::int64_t drafts = drafts_for(*sequence);
    if (!blocks_.extend(sequence->table, blocks_for(sequence->size() + drafts)))
      drafts =
          std::clamp<std::int64_t>(sequence->table.size() * kBlock - sequence->size(), 0, drafts);
    place(step, sequence, 1 + drafts, drafts);
  }
}

void Scheduler::schedule_prefills(ScheduledStep& step) {
  for (Sequence* sequence : running_) {
    if (sequence->state != SequenceState::kPrefill) continue;
    const std::int64_t count =
        chunk(*sequence, sequence->computed, options_.max_step_tokens - step.tokens);
    if (count > 0) place(step, sequence, count);
  }
}

bool Scheduler::held_back(const Sequence& sequence) const {
  if (sequence.after == 0) return false;
  const auto prefilling = [&](const Sequence* other) {
    return other->id == sequence.after && other->computed < other->prompt_tokens;
  };
  return std::any_of(running_.begin(), running_.end(), prefilling) ||
         std::any_of(waiting_.begin(), waiting_.end(), prefilling);
}

// Room for all of it now, and for every running sequence to grow by a block.
bool Scheduler::admissible(const Sequence& sequence) const {
  BlockManager::Hit hit;
  if (sequence.use_prefix_cache)
    hit = blocks_.probe(sequence.tokens, sequence.size() - 1, sequence.cache_salt);
  const std::int64_t fresh = blocks_for(sequence.size()) - hit.tokens / kBlock;
  return fresh + hit.idle_blocks + running() <= blocks_.available() ||
         (running_.empty() && fresh + hit.idle_blocks <= blocks_.available());
}

void Scheduler::admit(ScheduledStep& step) {
  for (std::size_t i = 0; i < waiting_.size();) {
    if (running() >= options_.max_sequences || step.tokens >= options_.max_step_tokens) return;
    Sequence* sequence = waiting_[i];
    if (held_back(*sequence)) {
      ++i;
      continue;
    }
    if (!admissible(*sequence)) return;
    const std::int64_t found =
        blocks_.start(sequence->table, sequence->tokens,
                      sequence->use_prefix_cache ? sequence->size() - 1 : 0, sequence->cache_salt);
    const std::int64_t count = chunk(*sequence, found, options_.max_step_tokens - step.tokens);
    if (count == 0 || !blocks_.extend(sequence->table, blocks_for(sequence->size()))) {
      blocks_.release(sequence->table);
      return;
    }
    sequence->computed = found;
    if (!sequence->admitted_before) sequence->cached_tokens = found;
    sequence->admitted_before = true;
    sequence->state = SequenceState::kPrefill;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    running_.push_back(sequence);
    place(step, sequence, count);
  }
}

ScheduledStep Scheduler::schedule() {
  ScheduledStep step;
  step.generation = ++generation_;
  schedule_decodes(step);
  schedule_prefills(step);
  // Whoever was just sent back must not return while others still need the room.
  if (step.preempted == 0) admit(step);
  return step;
}

void Scheduler::complete(const ScheduledSequence& item, std::int64_t rows) {
  Sequence& sequence = *item.sequence;
  sequence.computed = item.start + rows;
  std::int64_t entries = sequence.computed;
  if (options_.speculative_tokens > 0) entries = std::min(entries, sequence.draft.done);
  blocks_.commit(sequence.table,
                 std::span(sequence.tokens).first(static_cast<std::size_t>(entries)));
  if (item.samples) sequence.state = SequenceState::kDecode;
}

void Scheduler::finish(Sequence* sequence) {
  const auto remove = [&](auto& list) {
    const auto at = std::find(list.begin(), list.end(), sequence);
    if (at != list.end()) list.erase(at);
  };
  if (sequence->state == SequenceState::kWaiting) {
    remove(waiting_);
  } else {
    remove(running_);
  }
  blocks_.release(sequence->table);
  sequence->state = SequenceState::kFinished;
}

}  // namespace monolayer::engine

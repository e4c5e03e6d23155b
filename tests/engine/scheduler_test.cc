#include "engine/scheduler.h"

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace monolayer::engine {
namespace {

std::unique_ptr<Sequence> make(std::uint64_t id, std::int64_t prompt, std::int64_t output,
                               std::int32_t first = 0) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  for (std::int64_t i = 0; i < prompt; ++i)
    sequence->tokens.push_back(first + static_cast<std::int32_t>(i));
  sequence->prompt_tokens = prompt;
  sequence->most_tokens = prompt + output;
  return sequence;
}

SchedulerOptions options(std::int64_t sequences, std::int64_t tokens) {
  SchedulerOptions result;
  result.max_sequences = sequences;
  result.max_step_tokens = tokens;
  result.max_model_len = 100000;
  return result;
}

// What the model would do: every item computed, every sampling item given a token.
void finish_step(Scheduler& scheduler, const ScheduledStep& step) {
  for (const ScheduledSequence& item : step.sequences) {
    scheduler.complete(item);
    if (item.samples) item.sequence->tokens.push_back(7);
  }
}

TEST(Scheduler, CutsPromptsAtBlockBordersAndKeepsDecodesInEveryStep) {
  BlockManager blocks(64, true);
  Scheduler scheduler(options(8, 300), blocks);
  auto a = make(1, 10, 100), b = make(2, 1000, 10, 5000);
  scheduler.add(a.get());
  finish_step(scheduler, scheduler.schedule());
  scheduler.add(b.get());
  std::vector<std::int64_t> pieces;
  for (int i = 0; i < 4; ++i) {
    const ScheduledStep step = scheduler.schedule();
    ASSERT_EQ(step.sequences.size(), 2U);
    EXPECT_EQ(step.sequences[0].sequence, a.get());
    EXPECT_EQ(step.sequences[0].count, 1);
    EXPECT_LE(step.tokens, 300);
    pieces.push_back(step.sequences[1].count);
    EXPECT_EQ(step.sequences[1].samples, i == 3);
    finish_step(scheduler, step);
  }
  EXPECT_EQ(pieces, (std::vector<std::int64_t>{256, 256, 256, 232}));
}

TEST(Scheduler, ChargesOnlyWhatThePrefixCacheLacks) {
  BlockManager blocks(64, true);
  Scheduler scheduler(options(8, 512), blocks);
  auto a = make(1, 400, 10), b = make(2, 400, 10);
  scheduler.add(a.get());
  finish_step(scheduler, scheduler.schedule());
  scheduler.add(b.get());
  const ScheduledStep step = scheduler.schedule();
  ASSERT_EQ(step.sequences.size(), 2U);
  EXPECT_EQ(step.sequences[1].start, 384);
  EXPECT_EQ(step.sequences[1].count, 16);
  EXPECT_EQ(b->cached_tokens, 384);
}

TEST(Scheduler, SiblingsWaitForThePromptTheyShare) {
  BlockManager blocks(64, true);
  Scheduler scheduler(options(8, 256), blocks);
  auto a = make(1, 500, 10), b = make(2, 500, 10), c = make(3, 5, 10, 9000);
  b->after = 1;
  for (auto* sequence : {a.get(), b.get(), c.get()}) scheduler.add(sequence);
  const ScheduledStep first = scheduler.schedule();
  ASSERT_EQ(first.sequences.size(), 1U);  // the budget went to a
  finish_step(scheduler, first);
  const ScheduledStep second = scheduler.schedule();
  ASSERT_EQ(second.sequences.size(), 2U);  // c passes b, which waits
  EXPECT_EQ(second.sequences[1].sequence, c.get());
  finish_step(scheduler, second);
  const ScheduledStep third = scheduler.schedule();
  ASSERT_EQ(third.sequences.size(), 3U);
  EXPECT_EQ(third.sequences[2].sequence, b.get());
  EXPECT_EQ(b->cached_tokens, 384);
}

TEST(Scheduler, TheNewestGivesWayAndComesBackFirst) {
  BlockManager blocks(4, false);
  Scheduler scheduler(options(8, 512), blocks);
  auto a = make(1, 127, 300), b = make(2, 127, 300, 1000), c = make(3, 127, 10, 2000);
  scheduler.add(a.get());
  scheduler.add(b.get());
  scheduler.add(c.get());
  // Two fit with room to grow, the third waits.
  ScheduledStep step = scheduler.schedule();
  EXPECT_EQ(step.sequences.size(), 2U);
  while (scheduler.preemptions() == 0) {
    finish_step(scheduler, step);
    step = scheduler.schedule();
    ASSERT_FALSE(step.empty());
  }
  EXPECT_EQ(b->state, SequenceState::kWaiting);
  EXPECT_EQ(b->computed, 0);
  EXPECT_EQ(scheduler.waiting(), 2);
  finish_step(scheduler, step);
  scheduler.finish(a.get());
  step = scheduler.schedule();
  ASSERT_GE(step.sequences.size(), 1U);
  EXPECT_EQ(step.sequences[0].sequence, b.get());
  EXPECT_EQ(step.sequences[0].count, b->size());  // prompt and what it had generated
}

// One block is free. The older sequence's token fits the block it has, its guesses would need
// another; the younger one's token needs it.
TEST(Scheduler, NobodyGivesWayForAGuess) {
  BlockManager blocks(3, false);
  SchedulerOptions guessing = options(2, 512);
  guessing.speculative_tokens = 3;
  Scheduler scheduler(guessing, blocks);
  auto a = make(1, 126, 100), b = make(2, 128, 100, 1000);
  scheduler.add(a.get());
  scheduler.add(b.get());
  finish_step(scheduler, scheduler.schedule());
  ASSERT_EQ(a->size(), 127);
  ASSERT_EQ(b->size(), 129);
  ASSERT_EQ(a->table.size(), 1);
  ASSERT_EQ(b->table.size(), 1);
  ASSERT_EQ(blocks.available(), 1);
  const ScheduledStep step = scheduler.schedule();
  EXPECT_EQ(step.preempted, 0);
  EXPECT_EQ(b->state, SequenceState::kDecode);
  ASSERT_EQ(step.sequences.size(), 2U);
  EXPECT_EQ(step.sequences[0].sequence, a.get());
  EXPECT_EQ(step.sequences[0].wanted_drafts, 1);  // position 127, the last of its block
  EXPECT_EQ(step.sequences[0].count, 2);
  EXPECT_EQ(step.sequences[1].sequence, b.get());
  EXPECT_EQ(step.sequences[1].wanted_drafts, 3);
  EXPECT_EQ(step.sequences[1].count, 4);
  EXPECT_EQ(blocks.available(), 0);
}

// The block that an older sequence took for guesses, none of which came true, is free again for
// the younger one's token.
TEST(Scheduler, ABlockOfRefusedGuessesIsTakenBackBeforeAnybodyGivesWay) {
  BlockManager blocks(3, false);
  SchedulerOptions guessing = options(2, 512);
  guessing.speculative_tokens = 3;
  Scheduler scheduler(guessing, blocks);
  auto a = make(1, 125, 100), b = make(2, 127, 100, 1000);
  scheduler.add(a.get());
  scheduler.add(b.get());
  finish_step(scheduler, scheduler.schedule());
  ASSERT_EQ(a->size(), 126);
  ASSERT_EQ(b->size(), 128);
  const ScheduledStep first = scheduler.schedule();
  ASSERT_EQ(first.sequences.size(), 2U);
  ASSERT_EQ(first.sequences[0].wanted_drafts, 3);
  ASSERT_EQ(first.sequences[1].wanted_drafts, 0);
  ASSERT_EQ(a->table.size(), 2);
  ASSERT_EQ(blocks.available(), 0);
  for (const ScheduledSequence& item : first.sequences) {
    scheduler.complete(item, 1);
    item.sequence->tokens.push_back(7);
  }
  const ScheduledStep second = scheduler.schedule();
  EXPECT_EQ(second.preempted, 0);
  ASSERT_EQ(second.sequences.size(), 2U);
  EXPECT_EQ(second.sequences[0].wanted_drafts, 1);
  EXPECT_EQ(second.sequences[1].wanted_drafts, 3);
  EXPECT_EQ(a->table.size(), 1);
  EXPECT_EQ(b->table.size(), 2);
  EXPECT_TRUE(blocks.check_books().ok());
}

TEST(Scheduler, RefusesWhatCouldNeverRunAndNamesTheBound) {
  BlockManager blocks(4, true);
  SchedulerOptions limited = options(8, 256);
  limited.max_model_len = 600;
  limited.chunked_prefill = false;
  const Scheduler scheduler(limited, blocks);
  const auto refusal = [&](std::int64_t prompt, std::int64_t output) {
    return scheduler.check_schedulable(*make(1, prompt, output)).to_string();
  };
  EXPECT_TRUE(scheduler.check_schedulable(*make(1, 256, 200)).ok());
  EXPECT_NE(refusal(400, 201).find("601 tokens, the model length is 600"), std::string::npos);
  EXPECT_NE(refusal(100, 413).find("513 tokens, the caches hold 512"), std::string::npos);
  EXPECT_NE(refusal(257, 1).find("a step holds 256"), std::string::npos);
  EXPECT_EQ(Scheduler::check(options(0, 256)).subject(), "max_num_seqs");
  EXPECT_EQ(Scheduler::check(options(300, 256)).subject(), "max_num_batched_tokens");
}

// Random arrivals, cancellations and pool sizes: everybody finishes, nothing leaks, and no step
// breaks a budget or writes what it may not.
void random_run(std::uint32_t seed) {
  std::mt19937 random(seed);
  BlockManager blocks(8 + random() % 20, seed % 3 != 0);
  SchedulerOptions limits = options(1 + random() % 12, 140 + random() % 600);
  ASSERT_TRUE(Scheduler::check(limits).ok());
  if (seed % 4 == 0) limits.long_prefill_threshold = 128;
  Scheduler scheduler(limits, blocks);
  std::vector<std::unique_ptr<Sequence>> all;
  std::set<Sequence*> open;
  std::uint64_t generation = 0;
  int idle = 0;
  for (int turn = 0; turn < 60000 && !(turn > 600 && open.empty()); ++turn) {
    if (turn < 600 && random() % 4 == 0) {
      const auto most = static_cast<std::uint32_t>(blocks.total() * 128);
      const std::int64_t prompt = 1 + random() % (most / 2);
      auto sequence = make(all.size() + 1, prompt, 1 + random() % (most / 2),
                           static_cast<std::int32_t>(random() % 2));
      ASSERT_TRUE(scheduler.check_schedulable(*sequence).ok());
      sequence->most_tokens = std::min<std::int64_t>(sequence->most_tokens, prompt + 60);
      if (!all.empty() && random() % 8 == 0) sequence->after = 1 + random() % all.size();
      scheduler.add(sequence.get());
      open.insert(sequence.get());
      all.push_back(std::move(sequence));
    }
    if (!open.empty() && random() % 50 == 0) {
      auto at = open.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random() % open.size()));
      scheduler.finish(*at);
      open.erase(at);
    }
    const ScheduledStep step = scheduler.schedule();
    ASSERT_GT(step.generation, generation);
    generation = step.generation;
    ASSERT_LE(step.tokens, limits.max_step_tokens);
    ASSERT_LE(static_cast<std::int64_t>(step.sequences.size()), limits.max_sequences);
    idle = step.empty() && !open.empty() ? idle + 1 : 0;
    ASSERT_LT(idle, 3) << "work waits but nothing runs";
    std::set<Sequence*> seen;
    for (const ScheduledSequence& item : step.sequences) {
      ASSERT_TRUE(open.count(item.sequence) > 0);
      ASSERT_TRUE(seen.insert(item.sequence).second);
      ASSERT_EQ(item.start, item.sequence->computed);
      ASSERT_TRUE(item.samples || (item.start + item.count) % 128 == 0);
      const Status writable =
          blocks.check_writable(item.sequence->table, item.start, item.start + item.count);
      ASSERT_TRUE(writable.ok()) << writable.to_string();
    }
    finish_step(scheduler, step);
    for (const ScheduledSequence& item : step.sequences) {
      if (item.sequence->size() < item.sequence->most_tokens) continue;
      scheduler.finish(item.sequence);
      open.erase(item.sequence);
    }
    ASSERT_TRUE(blocks.check_books().ok()) << blocks.check_books().to_string();
  }
  EXPECT_TRUE(open.empty()) << open.size() << " never finished";
  EXPECT_EQ(blocks.available(), blocks.total());
  EXPECT_EQ(scheduler.running() + scheduler.waiting(), 0);
}

TEST(Scheduler, RandomWorkFinishesWithinBudgetsAndLeavesNothingBehind) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    random_run(seed);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace monolayer::engine

// The engine: one thread that batches requests into steps until each has its answer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend/cpu/thread_team.h"
#include "core/status.h"
#include "engine/block_manager.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/speculation.h"
#include "engine/step_model.h"
#include "text/tokenizer.h"

namespace monolayer::engine {

struct EngineOptions {
  SchedulerOptions scheduler;
  bool prefix_caching = true;
  std::int64_t max_waiting = 4096;  // further requests are refused as overload
  bool poison_dead_blocks = false;  // tests
  // Borrowed; samples the rows of a step together. Null: one after the other.
  cpu::ThreadTeam* team = nullptr;
  // Borrowed, used on the engine's thread; null: no speculation. Sets
  // scheduler.speculative_tokens.
  Speculator* speculator = nullptr;
};

// Counters since the start, gauges of the last step.
struct EngineStats {
  std::int64_t running = 0, waiting = 0;
  std::int64_t blocks_total = 0, blocks_used = 0, blocks_indexed = 0;
  std::int64_t steps = 0, step_tokens = 0, preemptions = 0;
  std::int64_t prompt_tokens = 0, generated_tokens = 0;  // of admitted prompts; drawn tokens
  std::int64_t prefix_queries = 0, prefix_hits = 0;      // in tokens
  std::int64_t finished[4] = {0, 0, 0, 0};               // by FinishReason
  std::int64_t seconds_without_progress = 0;             // 0 while idle
  SpeculationStats speculation;
  bool failed = false;
};

class Engine {
 public:
  // Called on the engine's thread with what a step gave, all requests together. Must not block and
  // must not call the engine.
  using Sink = std::function<void(std::vector<RequestOutput>)>;

  // Starts the thread. Borrows `model` and `tokenizer`. Errors of Scheduler::check().
  static Result<std::unique_ptr<Engine>> start(StepModel& model, const Tokenizer& tokenizer,
                                               const EngineOptions& options, Sink sink);
  // Aborts what is left and joins.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread. The id that outputs carry. kInvalidArgument naming the field and its bound, also
  // for what could never be scheduled; kResourceExhausted when the queue is full;
  // kFailedPrecondition while draining or after a failure.
  Result<std::uint64_t> submit(Request request);
  // Several at once, all or none; `after` of request i > 0 is set to the first one's id when
  // `share_prompt`.
  Result<std::vector<std::uint64_t>> submit_all(std::vector<Request> requests, bool share_prompt);
  // Any thread, any id. The request ends with kAbort before the next step; nothing happens if it
  // has ended.
  void abort(std::uint64_t id);
  // Refuses new requests from now on; running ones go on.
  void drain() { draining_ = true; }
  bool draining() const { return draining_; }
  // Any thread; never waits for a step.
  EngineStats stats() const;

 private:
  struct Live;
  Engine(StepModel& model, const Tokenizer& tokenizer, const EngineOptions& options, Sink sink);
  Status prepare();
  Status check(const Request& request) const;
  std::unique_ptr<Live> make(Request request);
  void loop();
  bool wait_for_work();
  void take_incoming(std::vector<RequestOutput>& outputs);
  void run_step(std::vector<RequestOutput>& outputs);
  void advance(std::size_t item_index, const ScheduledStep& step,
               std::vector<RequestOutput>& outputs);
  void prompt_rows(std::size_t item_index, const ScheduledSequence& item, Live& live,
                   RequestOutput& output);
  // A token, or why there is none.
  struct Drawn {
    Status error;
    std::int32_t id = 0;
    std::optional<Logprobs> logprobs;  // if asked for
  };
  // Memory of a thread that samples.
  struct Drawer {
    SamplerScratch sampler;
    std::vector<float> logits;  // after the rules of a request
  };
  // Which token logit row `row` gives at `position`, with the rules of the request. Any thread.
  Drawn choose(std::size_t item_index, std::int64_t row, const Live& live, std::int64_t position,
               Drawer& drawer) const;
  // Tokens of the step's rows that depend on no other token of the step, by the team.
  void draw_ahead(const ScheduledStep& step, const std::vector<Status>& statuses);
  // Draws from logit row `row`, or takes `given`; what then ends the answer, if anything.
  std::optional<FinishReason> draw(std::size_t item_index, std::int64_t row, Live& live,
                                   RequestOutput& output, std::optional<std::int32_t> given);
  // Tokens of one item, guesses first; returns how many of its rows were final.
  std::int64_t draw_run(std::size_t item_index, const ScheduledSequence& item, Live& live,
                        RequestOutput& output, std::optional<FinishReason>& finish);
  void end(Live& live, RequestOutput& output, FinishReason reason);
  void fail_all(const Status& status, std::vector<RequestOutput>& outputs);
  void publish();
  void touch();

  StepModel& model_;
  const Tokenizer& tokenizer_;
  EngineOptions options_;
  Sink sink_;
  // The engine thread's own.
  BlockManager blocks_;
  Scheduler scheduler_;
  Runner runner_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Live>> live_;
  std::vector<Drawer> drawers_;  // of each thread
  // What draw_ahead() has drawn: [item][row from its first that gives a token].
  std::vector<std::vector<Drawn>> ahead_;
  EngineStats counters_;

  std::mutex mutex_;  // of the next four
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Live>> incoming_;
  std::vector<std::uint64_t> aborts_;
  bool stop_ = false;
  std::uint64_t next_id_ = 1;

  std::atomic<bool> draining_{false}, failed_{false}, busy_{false};
  std::atomic<std::int64_t> queued_{0};
  std::atomic<std::int64_t> progress_ns_{0};
  mutable std::mutex stats_mutex_;
  EngineStats published_;
  std::thread thread_;
};

}  // namespace monolayer::engine

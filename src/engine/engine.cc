#include "engine/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/engine_live.h"

namespace monolayer::engine {
namespace {

using Clock = RequestTimes::Clock;

// Whether the likeliest token is all that the next ones of this request take.
bool is_greedy(const Request& r, std::int64_t generated) {
  return r.sampling.temperature == 0 && r.rules.empty() && r.logprobs < 0 &&
         r.prompt_logprobs < 0 && r.max_tokens > 0 && generated >= r.min_tokens;
}

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

}  // namespace

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

Engine::Engine(StepModel& model, const Tokenizer& tokenizer, const EngineOptions& options,
               Sink sink)
    : model_(model),
      tokenizer_(tokenizer),
      options_(options),
      sink_(std::move(sink)),
      blocks_(model.blocks(), options.prefix_caching),
      scheduler_(options.scheduler, blocks_),
      runner_(model, blocks_),
      drawers_(options.team == nullptr ? 1 : static_cast<std::size_t>(options.team->size())) {
  if (options.poison_dead_blocks) {
    blocks_.on_dead([this](std::int32_t block) {
      model_.poison(block);
      if (options_.speculator != nullptr) options_.speculator->poison(block);
    });
  }
  publish();
}

Result<std::unique_ptr<Engine>> Engine::start(StepModel& model, const Tokenizer& tokenizer,
                                              const EngineOptions& options, Sink sink) {
  EngineOptions effective = options;
  effective.scheduler.speculative_tokens =
      options.speculator == nullptr ? 0 : options.speculator->tokens();
  ML_RETURN_IF_ERROR(Scheduler::check(effective.scheduler));
  const std::int64_t room = model.blocks() * m3::kPageTokens;
  if (effective.scheduler.max_model_len == 0) effective.scheduler.max_model_len = room;
  if (effective.scheduler.max_model_len > room)
    return Status(Code::kInvalidArgument, "max_model_len",
                  "is " + std::to_string(effective.scheduler.max_model_len) +
                      " tokens, the caches hold " + std::to_string(room));
  std::unique_ptr<Engine> engine(new Engine(model, tokenizer, effective, std::move(sink)));
  ML_RETURN_IF_ERROR(engine->prepare());
  engine->thread_ = std::thread([raw = engine.get()] { raw->loop(); });
  return engine;
}

// Every pool a step draws on is made before the first one.
Status Engine::prepare() {
  const SchedulerOptions& s = options_.scheduler;
  const std::int64_t rows = s.max_step_tokens;
  const std::int64_t logit_rows =
      std::min(rows, std::max(m3::kPageTokens, s.max_sequences * (s.speculative_tokens + 1)));
  ML_RETURN_IF_ERROR(runner_.prepare_for(rows, s.max_model_len, logit_rows));
  return options_.speculator == nullptr ? ok_status()
                                        : options_.speculator->prepare_for(rows, s.max_sequences);
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status Engine::check(const Request& request) const {
  ML_RETURN_IF_ERROR(check_sampling(request.sampling));
  ML_RETURN_IF_ERROR(check_rules(request.rules, model_.vocab_size()));
  if (options_.speculator != nullptr && options_.speculator->synthetic() &&
      (request.logprobs >= 0 || request.prompt_logprobs >= 0))
    return {Code::kInvalidArgument, "logprobs",
            "are not given while acceptance is synthetic: the text is not the model's"};
  if (request.prompt.empty()) return {Code::kInvalidArgument, "prompt", "is empty"};
  for (std::size_t i = 0; i < request.prompt.size(); ++i)
    if (request.prompt[i] < 0 || request.prompt[i] >= model_.vocab_size())
      return {Code::kInvalidArgument, "prompt[" + std::to_string(i) + "]",
              "is token " + std::to_string(request.prompt[i]) + ", must be from 0 to " +
                  std::to_string(model_.vocab_size() - 1)};
  const std::int64_t least = request.prompt_logprobs >= 0 ? 0 : 1;
  if (request.max_tokens < least)
    return {Code::kInvalidArgument, "max_tokens", "must be at least " + std::to_string(least)};
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens)
    return {Code::kInvalidArgument, "min_tokens",
            "is " + std::to_string(request.min_tokens) + ", must be from 0 to max_tokens (" +
                std::to_string(request.max_tokens) + ")"};
  return ok_status();
}

std::unique_ptr<Engine::Live> Engine::make(Request request) {
  auto live = std::make_unique<Live>(std::move(request), tokenizer_);
  const Request& r = live->request;
  Sequence& sequence = live->sequence;
  sequence.tokens = r.prompt;
  sequence.prompt_tokens = sequence.size();
  sequence.most_tokens = sequence.prompt_tokens + r.max_tokens;
  sequence.cache_salt = r.cache_salt;
  sequence.after = r.after;
  if (r.prompt_logprobs >= 0) {
    sequence.use_prefix_cache = false;
    sequence.all_logits = true;
    sequence.largest_chunk = m3::kPageTokens;  // bounds the logits held at once
  }
  live->held_ids = r.stop_ids;
  live->held_ids.insert(live->held_ids.end(), r.eos_ids.begin(), r.eos_ids.end());
  live->times.arrival = Clock::now();
  return live;
}

Result<std::uint64_t> Engine::submit(Request request) {
  std::vector<Request> one;
  one.push_back(std::move(request));
  ML_ASSIGN_OR_RETURN(const auto ids, submit_all(std::move(one), false));
  return ids.front();
}

Result<std::vector<std::uint64_t>> Engine::submit_all(std::vector<Request> requests,
                                                      bool share_prompt) {
  if (failed_) return Status(Code::kFailedPrecondition, "engine", "has failed");
  if (draining_) return Status(Code::kFailedPrecondition, "engine", "is shutting down");
  std::vector<std::unique_ptr<Live>> made;
  for (Request& request : requests) {
    ML_RETURN_IF_ERROR(check(request));
    made.push_back(make(std::move(request)));
    ML_RETURN_IF_ERROR(scheduler_.check_schedulable(made.back()->sequence));
  }
  const auto count = static_cast<std::int64_t>(made.size());
  std::vector<std::uint64_t> ids;
  {
    const std::lock_guard lock(mutex_);
    const std::int64_t waiting = queued_ + count;
    if (waiting > options_.max_waiting)
      return Status(Code::kResourceExhausted, "engine",
                    "has " + std::to_string(queued_) + " requests waiting, at most " +
                        std::to_string(options_.max_waiting));
    queued_ += count;
    for (auto& live : made) {
      live->sequence.id = next_id_++;
      ids.push_back(live->sequence.id);
      if (share_prompt && ids.size() > 1) live->sequence.after = ids.front();
      incoming_.push_back(std::move(live));
    }
  }
  wake_.notify_one();
  return ids;
}

void Engine::abort(std::uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    aborts_.push_back(id);
  }
  wake_.notify_one();
}

void Engine::touch() { progress_ns_ = now_ns(); }

bool Engine::wait_for_work() {
  std::unique_lock lock(mutex_);
  busy_ = !live_.empty();
  const auto ready = [&] { return stop_ || !incoming_.empty() || !aborts_.empty(); };
  if (live_.empty()) wake_.wait(lock, ready);
  touch();
  busy_ = true;
  return !stop_;
}

void Engine::take_incoming(std::vector<RequestOutput>& outputs) {
  std::vector<std::unique_ptr<Live>> incoming;
  std::vector<std::uint64_t> aborts;
  {
    const std::lock_guard lock(mutex_);
    incoming.swap(incoming_);
    aborts.swap(aborts_);
  }
  for (auto& live : incoming) {
    Live* raw = live.get();
    live_.emplace(raw->sequence.id, std::move(live));
    scheduler_.add(&raw->sequence);
  }
  for (const std::uint64_t id : aborts) {
    const auto at = live_.find(id);
    if (at == live_.end()) continue;
    RequestOutput output;
    end(*at->second, output, FinishReason::kAbort);
    outputs.push_back(std::move(output));
    live_.erase(at);
  }
}

void Engine::end(Live& live, RequestOutput& output, FinishReason reason) {
  Sequence& sequence = live.sequence;
  if (reason != FinishReason::kAbort && reason != FinishReason::kError)
    output.text += live.text.finish(sequence.generated() > live.request.min_tokens);
  scheduler_.finish(&sequence);
  if (!live.seen) {
    live.seen = true;
    --queued_;
  }
  ++counters_.finished[static_cast<std::size_t>(reason)];
  output.id = sequence.id;
  output.finish = reason;
  output.cached_tokens = sequence.cached_tokens;
  output.preemptions = sequence.preemptions;
  live.times.last_token = Clock::now();
  output.times = live.times;
}

void Engine::advance(std::size_t item_index, const ScheduledStep& step,
                     std::vector<RequestOutput>& outputs) {
  const ScheduledSequence& item = step.sequences[item_index];
  Live& live = *live_.at(item.sequence->id);
  const bool decodes = item.sequence->state == SequenceState::kDecode;
  RequestOutput output;
  output.id = item.sequence->id;
  output.cached_tokens = item.sequence->cached_tokens;
  prompt_rows(item_index, item, live, output);
  std::int64_t rows = item.count;
  std::optional<FinishReason> finish;
  if (item.samples) {
    const std::int64_t drawn = draw_run(item_index, item, live, output, finish);
    if (decodes) rows = drawn;
  }
  if (decodes && options_.speculator != nullptr)
    options_.speculator->accept(step, item_index, rows);
  scheduler_.complete(item, rows);
  if (finish) end(live, output, *finish);
  const bool finished = output.finish.has_value();
  if (finished && *output.finish == FinishReason::kLength && live.text.matched()) {
    // The end of a broken character completed a stop string.
    output.finish = FinishReason::kStop;
    output.stop_string = *live.text.matched();
  }
  if (finished || !output.tokens.empty() || !output.prompt_logprobs.empty())
    outputs.push_back(std::move(output));
  if (finished) live_.erase(item.sequence->id);
}

void Engine::fail_all(const Status& status, std::vector<RequestOutput>& outputs) {
  for (auto& [id, live] : live_) {
    RequestOutput output;
    output.error = status;
    end(*live, output, FinishReason::kError);
    outputs.push_back(std::move(output));
  }
  live_.clear();
}

void Engine::run_step(std::vector<RequestOutput>& outputs) {
  ScheduledStep step = scheduler_.schedule();
  if (step.empty()) return;
  Speculator* const speculator = options_.speculator;
  if (speculator != nullptr) speculator->propose(step, blocks_);
  for (const ScheduledSequence& item : step.sequences) {
    Live& live = *live_.at(item.sequence->id);
    if (live.seen) continue;
    live.seen = true;
    --queued_;
    live.times.first_scheduled = Clock::now();
    counters_.prompt_tokens += item.sequence->prompt_tokens;
    if (options_.prefix_caching && item.sequence->use_prefix_cache) {
      counters_.prefix_queries += item.sequence->prompt_tokens;
      counters_.prefix_hits += item.sequence->cached_tokens;
    }
  }
  for (ScheduledSequence& item : step.sequences) {
    const Live& live = *live_.at(item.sequence->id);
    item.greedy = item.samples && is_greedy(live.request, item.sequence->generated());
  }
  const std::vector<Status> statuses = runner_.run(step);
  if (speculator != nullptr) speculator->observe(step, statuses, runner_.kept(), blocks_);
  draw_ahead(step, statuses);
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    const ScheduledSequence& item = step.sequences[i];
    if (statuses[i].ok()) {
      advance(i, step, outputs);
      continue;
    }
    if (stops_engine(statuses[i])) {
      failed_ = true;
      fail_all(statuses[i], outputs);
      break;
    }
    RequestOutput output;
    output.error = statuses[i];
    end(*live_.at(item.sequence->id), output, FinishReason::kError);
    live_.erase(item.sequence->id);
    outputs.push_back(std::move(output));
  }
  ++counters_.steps;
  counters_.step_tokens += step.tokens;
}

void Engine::publish() {
  counters_.running = scheduler_.running();
  counters_.waiting = scheduler_.waiting();
  counters_.blocks_total = blocks_.total();
  counters_.blocks_used = blocks_.total() - blocks_.available();
  counters_.blocks_indexed = blocks_.indexed();
  counters_.preemptions = scheduler_.preemptions();
  if (options_.speculator != nullptr) counters_.speculation = options_.speculator->stats();
  const std::lock_guard lock(stats_mutex_);
  published_ = counters_;
}

EngineStats Engine::stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = published_;
  }
  stats.failed = failed_;
  if (busy_) stats.seconds_without_progress = (now_ns() - progress_ns_) / 1'000'000'000;
  return stats;
}

void Engine::loop() {
  while (wait_for_work()) {
    std::vector<RequestOutput> outputs;
    take_incoming(outputs);
    if (failed_) fail_all({Code::kFailedPrecondition, "engine", "has failed"}, outputs);
    run_step(outputs);
    publish();
    if (!outputs.empty()) sink_(std::move(outputs));
  }
  std::vector<RequestOutput> outputs;
  take_incoming(outputs);
  for (auto& [id, live] : live_) {
    RequestOutput output;
    end(*live, output, FinishReason::kAbort);
    outputs.push_back(std::move(output));
  }
  live_.clear();
  publish();
  if (!outputs.empty()) sink_(std::move(outputs));
}

}  // namespace monolayer::engine

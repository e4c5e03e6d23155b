#include "engine/speculative_generate.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/step_model.h"

namespace monolayer::engine {
namespace {

// What the engine's thread gives, for the caller's.
class Answer {
 public:
  Answer(NativeRun& run, DraftRun& draft) : run_(run), draft_(draft), at_start_(moved()) {}

  // On the engine's thread, between steps.
  void take(std::vector<RequestOutput> outputs) {
    const std::lock_guard lock(mutex_);
    for (RequestOutput& output : outputs) {
      if (!output.tokens.empty()) {
        if (steps_ == 0) {
          at_first_ = moved();
        } else {
          decode_tokens_ += static_cast<std::int64_t>(output.tokens.size());
        }
        ++steps_;
      }
      tokens_.insert(tokens_.end(), output.tokens.begin(), output.tokens.end());
      if (!output.finish) continue;
      end_ = std::move(output);
      at_end_ = moved();
    }
    changed_.notify_all();
  }
  // New tokens, or none after the end.
  std::vector<std::int32_t> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !tokens_.empty() || end_; });
    return std::exchange(tokens_, {});
  }
  // After the end.
  Status error() const { return end_->error; }
  FinishReason reason() const { return *end_->finish; }
  void report(GenerateReport& report) const {
    const auto seconds = [](auto from, auto to) {
      return std::chrono::duration<double>(to - from).count();
    };
    const RequestTimes& times = end_->times;
    if (steps_ > 0) {
      report.prefill_seconds = seconds(times.arrival, times.first_token);
      report.decode_seconds = seconds(times.first_token, times.last_token);
      report.decode_steps = steps_ - 1;
      report.decode_tokens = decode_tokens_;
    }
    report.prefill = at_first_.since(at_start_);
    report.decode = at_end_.since(at_first_);
  }

 private:
  cpu::Traffic moved() const {
    cpu::Traffic all = run_.native().total_traffic();
    all += draft_.draft().total_traffic();
    return all;
  }

  NativeRun& run_;
  DraftRun& draft_;
  const cpu::Traffic at_start_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::vector<std::int32_t> tokens_;
  std::int64_t steps_ = 0;          // that gave tokens
  std::int64_t decode_tokens_ = 0;  // of all steps but the first
  cpu::Traffic at_first_, at_end_;
  std::optional<RequestOutput> end_;
};

}  // namespace

Result<GenerateReport> generate_speculating(const OpenModel& model, const Tokenizer& tokenizer,
                                            NativeRun& run, DraftRun& draft,
                                            std::span<const std::int32_t> prompt,
                                            const GenerateOptions& options,
                                            const TokenCallback& on_token) {
  GenerateReport report;
  report.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  std::int64_t limit = std::min(model.config.max_positions, run.pool().pages() * m3::kPageTokens);
  if (options.max_context > 0) limit = std::min(limit, options.max_context);
  if (report.prompt_tokens >= limit)
    return Status(Code::kInvalidArgument, "prompt",
                  "has " + std::to_string(report.prompt_tokens) + " tokens; the limit of " +
                      std::to_string(limit) + " tokens of context leaves room for a prompt of " +
                      std::to_string(limit - 1));
  Request request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.sampling = options.sampling;
  request.max_tokens = std::min(options.max_tokens, limit - report.prompt_tokens);
  request.eos_ids = options.stop_ids;
  EngineOptions engine_options;
  engine_options.prefix_caching = false;
  engine_options.speculator = &draft.speculator();
  engine_options.scheduler.max_sequences = 1;
  // No more than there are: the engine makes room for steps of that many rows.
  engine_options.scheduler.max_step_tokens =
      std::max(std::min(options.prefill_chunk, report.prompt_tokens),
               m3::kPageTokens + draft.speculator().tokens() + 1);

  NativeModel steps(model.config, run.native(), run.pool(), options.still_valid);
  Answer answer(run, draft);
  ML_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      Engine::start(steps, tokenizer, engine_options,
                    [&](std::vector<RequestOutput> all) { answer.take(std::move(all)); }));
  ML_ASSIGN_OR_RETURN(const std::uint64_t id, engine->submit(std::move(request)));
  bool cancelled = false;
  while (true) {
    const std::vector<std::int32_t> tokens = answer.wait();
    if (tokens.empty()) break;
    for (const std::int32_t token : tokens) {
      const auto& stops = options.stop_ids;
      if (cancelled || std::find(stops.begin(), stops.end(), token) != stops.end()) break;
      ++report.generated_tokens;
      cancelled = !on_token(token);
      if (cancelled) engine->abort(id);
    }
  }
  ML_RETURN_IF_ERROR(answer.error());
  if (cancelled) {
    report.finish = Finish::kCancelled;
  } else {
    report.finish = answer.reason() == FinishReason::kStop ? Finish::kStop : Finish::kLength;
  }
  answer.report(report);
  return report;
}

}  // namespace monolayer::engine

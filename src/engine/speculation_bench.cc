#include "engine/speculation_bench.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/bench_batch.h"
#include "engine/draft_model.h"
#include "engine/engine.h"
#include "engine/prompt.h"

namespace monolayer::engine {
namespace {

using Clock = RequestTimes::Clock;

// Answers one request at a time and notes what its decode took.
class Stream {
 public:
  Stream(const OpenModel& model, const Tokenizer& tokenizer, NativeRun& run, DraftRun* draft)
      : run_(run), draft_(draft), steps_(model.config, run.native(), run.pool()) {
    EngineOptions options;
    options.prefix_caching = false;
    options.scheduler.max_sequences = 1;
    if (draft != nullptr) options.speculator = &draft->speculator();
    auto engine = Engine::start(steps_, tokenizer, options,
                                [this](std::vector<RequestOutput> all) { take(std::move(all)); });
    status_ = engine.status();
    if (engine.ok()) engine_ = *std::move(engine);
  }
  ~Stream() { engine_.reset(); }
  Status status() const { return status_; }

  Status answer(const std::vector<std::int32_t>& prompt, std::int64_t max_tokens,
                const std::vector<std::int32_t>& ends) {
    Request request;
    request.prompt = prompt;
    request.max_tokens = max_tokens;
    request.eos_ids = ends;
    tokens.clear();
    done_ = false;
    ML_RETURN_IF_ERROR(engine_->submit(std::move(request)).status());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    return error_;
  }
  SpeculationStats stats() const {
    return draft_ == nullptr ? SpeculationStats{} : draft_->speculator().stats();
  }

  std::vector<std::int32_t> tokens;  // of the last answer
  double seconds = 0;                // all answers, from first to last token
  std::int64_t bytes = 0, decoded = 0, steps = 0;

 private:
  std::int64_t moved() const {
    return run_.native().total_traffic().total() +
           (draft_ == nullptr ? 0 : draft_->draft().total_traffic().total());
  }
  // On the engine's thread, between steps.
  void take(std::vector<RequestOutput> outputs) {
    const std::lock_guard lock(mutex_);
    for (RequestOutput& output : outputs) {
      if (tokens.empty()) {
        began_ = Clock::now();
        bytes_before_ = moved();
      } else {
        ++steps;
        decoded += static_cast<std::int64_t>(output.tokens.size());
      }
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
      if (!output.finish) continue;
      seconds += std::chrono::duration<double>(Clock::now() - began_).count();
      bytes += moved() - bytes_before_;
      error_ = output.error;
      done_ = true;
    }
    changed_.notify_all();
  }

  NativeRun& run_;
  DraftRun* draft_;
  NativeModel steps_;
  Status status_, error_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Clock::time_point began_;
  std::int64_t bytes_before_ = 0;
  std::unique_ptr<Engine> engine_;
};

using Answers = std::vector<std::vector<std::int32_t>>;

// One round of all prompts.
Status round(const OpenModel& model, const TextModel& text, NativeRun& run, const OpenDraft* draft,
             const SpeculationBenchOptions& options, const Answers& prompts,
             const std::vector<std::int32_t>& ends, Answers& answers,
             SpeculationBenchResult& result, std::vector<double>& rates) {
  std::unique_ptr<DraftRun> loaded;
  if (result.guesses > 0) {
    SpeculationOptions speculation;
    speculation.tokens = result.guesses;
    ML_ASSIGN_OR_RETURN(loaded, DraftRun::load(*draft, model, run, speculation));
  } else {
    ML_RETURN_IF_ERROR(run.native().capture({}));
  }
  Stream stream(model, text.tokenizer(), run, loaded.get());
  ML_RETURN_IF_ERROR(stream.status());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ML_RETURN_IF_ERROR(stream.answer(prompts[i], options.max_tokens, ends));
    if (answers[i].empty()) answers[i] = stream.tokens;
    if (answers[i] != stream.tokens)
      return {Code::kInternal, "speculation",
              "with " + std::to_string(result.guesses) + " guesses, prompt " + std::to_string(i) +
                  " has another answer"};
  }
  const SpeculationStats stats = stream.stats();
  const auto tokens = static_cast<double>(std::max<std::int64_t>(stream.decoded, 1));
  result.tokens = stream.decoded;
  result.steps = stream.steps;
  result.bytes_per_token = static_cast<double>(stream.bytes) / tokens;
  result.tokens_per_step = tokens / static_cast<double>(std::max<std::int64_t>(stream.steps, 1));
  for (std::size_t i = 0; i < result.accepted_at.size() && stats.steps > 0; ++i)
    result.accepted_at[i] =
        static_cast<double>(stats.accepted_at[i]) / static_cast<double>(stats.steps);
  rates.push_back(tokens / std::max(stream.seconds, 1e-9));
  return ok_status();
}

}  // namespace

Result<std::vector<SpeculationBenchResult>> bench_speculation(
    const OpenModel& model, const SpeculationBenchOptions& options) {
  ML_ASSIGN_OR_RETURN(const TextModel text, TextModel::load(model.folder));
  ML_ASSIGN_OR_RETURN(const auto defaults, generation_defaults(model.folder, model.config));
  Answers prompts, answers(options.prompts.size());
  std::int64_t longest = 0;
  for (const std::string& prompt : options.prompts) {
    PromptRequest request;
    request.text = prompt;
    ML_ASSIGN_OR_RETURN(const Prompt built, text.build(request, model.config.vocab_size));
    prompts.push_back(built.ids);
    longest = std::max(longest, static_cast<std::int64_t>(built.ids.size()));
  }
  if (prompts.empty()) return Status(Code::kInvalidArgument, "prompts", "are none");
  NativeRunOptions run_options;
  run_options.context_tokens = longest + options.max_tokens;
  run_options.context_flag = "prompts and --max-tokens";
  run_options.backend = options.backend;
  run_options.path = options.path;
  run_options.threads = options.threads;
  run_options.ranks = options.ranks;
  run_options.cache_types = options.cache_types;
  std::unique_ptr<OpenDraft> draft;
  if (std::any_of(options.guesses.begin(), options.guesses.end(), [](auto k) { return k > 0; })) {
    ML_ASSIGN_OR_RETURN(draft, open_draft(options.draft, model.config));
    run_options.draft_bytes = static_cast<std::int64_t>(draft->checkpoint.file_bytes());
    run_options.draft_block_bytes = draft->host_block_bytes(model.config, options.backend);
  }
  ML_ASSIGN_OR_RETURN(const auto run, NativeRun::load(model, run_options));
  std::vector<SpeculationBenchResult> results(options.guesses.size());
  std::vector<std::vector<double>> rates(results.size());
  for (std::int64_t repeat = 0; repeat < options.repeats; ++repeat) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      results[i].guesses = options.guesses[i];
      ML_RETURN_IF_ERROR(round(model, text, *run, draft.get(), options, prompts,
                               defaults.eos_token_ids, answers, results[i], rates[i]));
    }
  }
  for (std::size_t i = 0; i < results.size(); ++i)
    results[i].tokens_per_second = bench_median(rates[i]);
  return results;
}

}  // namespace monolayer::engine

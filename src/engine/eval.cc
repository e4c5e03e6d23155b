#include "engine/eval.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "engine/engine.h"
#include "text/reasoning.h"

namespace monolayer::engine {
namespace {

constexpr double kZ = 1.959963984540054;  // two-sided 95 %

struct Reply {
  std::string text;
  std::int64_t tokens = 0;
  double loss = 0;  // of the prompt's tokens, negative log-likelihood
  std::int64_t predicted = 0;
  FinishReason finish = FinishReason::kError;
  bool done = false;
};

// Replies as the engine's thread delivers them.
class Replies {
 public:
  explicit Replies(std::size_t count) : replies_(count) {}

  void expect(std::uint64_t id, std::size_t item) {
    const std::lock_guard lock(mutex_);
    items_[id] = item;
    for (const RequestOutput& output : early_)
      if (output.id == id) add(output);
  }
  void take(std::vector<RequestOutput> outputs) {
    {
      const std::lock_guard lock(mutex_);
      for (RequestOutput& output : outputs) {
        if (items_.contains(output.id)) {
          add(output);
        } else {  // submit() has not returned its id yet
          early_.push_back(std::move(output));
        }
      }
    }
    changed_.notify_one();
  }
  // Waits until fewer than `most` of the expected ones are missing.
  std::size_t wait_below(std::size_t most) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return items_.size() - done_ < most; });
    return done_;
  }
  const Reply& at(std::size_t item) const { return replies_[item]; }
  // Of the first reply that has one.
  Status error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  void add(const RequestOutput& output) {
    Reply& reply = replies_[items_.at(output.id)];
    reply.text += output.text;
    reply.tokens += static_cast<std::int64_t>(output.tokens.size());
    for (const Logprobs& row : output.prompt_logprobs) {
      reply.loss -= static_cast<double>(row.chosen.logprob);
      ++reply.predicted;
    }
    if (!output.finish) return;
    reply.finish = *output.finish;
    reply.done = true;
    ++done_;
    if (!output.error.ok() && error_.ok()) error_ = output.error;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<std::uint64_t, std::size_t> items_;
  std::vector<RequestOutput> early_;
  std::vector<Reply> replies_;
  std::size_t done_ = 0;
  Status error_;
};

Request request_of(const EvalItem& item, const EvalOptions& options) {
  Request request;
  request.prompt = item.prompt.ids;
  request.eos_ids = options.eos_ids;
  request.max_tokens = item.predict ? 0 : item.max_tokens;
  if (item.predict) request.prompt_logprobs = 0;
  return request;
}

void count_answer(const EvalItem& item, const Reply& reply, const EvalOptions& options,
                  EvalTask& task, EvalReport& report) {
  ++task.asked;
  const auto prompt_tokens = static_cast<std::int64_t>(item.prompt.ids.size());
  task.prompt_tokens += prompt_tokens;
  task.longest_prompt = std::max(task.longest_prompt, prompt_tokens);
  task.reply_tokens += reply.tokens;
  const std::string content = split_reasoning(reply.text, item.prompt.thinking).content;
  if (reply.finish == FinishReason::kError || reply.finish == FinishReason::kAbort) {
    ++task.failed;
  } else if (reply.finish == FinishReason::kLength) {
    ++task.truncated;
  } else if (content.empty()) {
    ++task.unparsed;
  } else if (content == item.answer) {
    ++task.exact;
    return;
  } else {
    ++task.wrong;
  }
  if (static_cast<std::int64_t>(report.misses.size()) < options.misses)
    report.misses.push_back({item.task, item.answer, reply.text, item.line});
}

// Mean loss a token over texts, and its spread: a ratio of sums, so the residuals of the texts
// about the ratio give the error.
void predict_interval(const std::vector<std::pair<double, std::int64_t>>& texts, EvalTask& task) {
  double loss = 0;
  for (const auto& [sum, count] : texts) {
    loss += sum;
    task.predicted_tokens += count;
  }
  task.texts = static_cast<std::int64_t>(texts.size());
  const auto tokens = static_cast<double>(task.predicted_tokens);
  const double mean = loss / tokens;
  double square = 0;
  for (const auto& [sum, count] : texts) {
    const double residual = sum - mean * static_cast<double>(count);
    square += residual * residual;
  }
  task.perplexity = std::exp(mean);
  task.perplexity_interval = {0, std::numeric_limits<double>::infinity()};
  if (texts.size() < 2) return;
  const auto n = static_cast<double>(texts.size());
  const double error = std::sqrt(square * n / (n - 1)) / tokens;
  task.perplexity_interval = {std::exp(mean - kZ * error), std::exp(mean + kZ * error)};
}

// What ended the engine, as far as a reply tells; otherwise `seen`.
Status stopped(const Engine& engine, const Replies& replies, const Status& seen) {
  const Status error = replies.error();
  return engine.stats().failed && !error.ok() ? error : seen;
}

EvalReport summarize(const std::vector<EvalItem>& items, const Replies& replies,
                     const EvalOptions& options) {
  EvalReport report;
  std::map<std::string, std::size_t> places;
  std::vector<std::vector<std::pair<double, std::int64_t>>> texts;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto [place, is_new] = places.try_emplace(items[i].task, report.tasks.size());
    if (is_new) {
      report.tasks.emplace_back().name = items[i].task;
      texts.emplace_back();
    }
    EvalTask& task = report.tasks[place->second];
    const Reply& reply = replies.at(i);
    if (!items[i].predict) {
      count_answer(items[i], reply, options, task, report);
    } else if (reply.finish == FinishReason::kLength) {
      texts[place->second].emplace_back(reply.loss, reply.predicted);
    } else {
      ++task.failed;
    }
  }
  for (std::size_t i = 0; i < report.tasks.size(); ++i) {
    EvalTask& task = report.tasks[i];
    task.exact_interval = wilson(task.exact, task.asked);
    if (!texts[i].empty()) predict_interval(texts[i], task);
  }
  return report;
}

}  // namespace

Interval wilson(std::int64_t hits, std::int64_t trials) {
  if (trials == 0) return {0, 1};
  const auto n = static_cast<double>(trials);
  const double p = static_cast<double>(hits) / n;
  const double middle = p + kZ * kZ / (2 * n);
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n));
  const double scale = 1 + kZ * kZ / n;
  return {std::max(0.0, (middle - half) / scale), std::min(1.0, (middle + half) / scale)};
}

std::int64_t eval_pool_tokens(const std::vector<EvalItem>& items, std::int64_t rows) {
  std::vector<std::int64_t> pages;
  pages.reserve(items.size());
  for (const EvalItem& item : items)
    pages.push_back((static_cast<std::int64_t>(item.prompt.ids.size()) + item.max_tokens +
                     m3::kMostDrafts + m3::kPageTokens) /
                    m3::kPageTokens);
  std::sort(pages.rbegin(), pages.rend());
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < pages.size() && static_cast<std::int64_t>(i) < rows; ++i)
    sum += pages[i];
  return sum * m3::kPageTokens;
}

Result<EvalReport> run_eval(StepModel& model, const Tokenizer& tokenizer,
                            const std::vector<EvalItem>& items, const EvalOptions& options) {
  if (options.rows < 1) return Status(Code::kInvalidArgument, "rows", "must be at least 1");
  const std::int64_t guesses = options.speculator == nullptr ? 0 : options.speculator->tokens();
  EngineOptions engine_options;
  engine_options.scheduler.max_sequences = options.rows;
  engine_options.scheduler.max_step_tokens =
      std::max(options.step_tokens, options.rows * (1 + guesses) + m3::kPageTokens);
  engine_options.team = options.team;
  engine_options.speculator = options.speculator;
  engine_options.scheduler.speculative_tokens = guesses;
  const auto begin = std::chrono::steady_clock::now();
  Replies replies(items.size());
  ML_ASSIGN_OR_RETURN(auto engine, Engine::start(model, tokenizer, engine_options,
                                                 [&replies](std::vector<RequestOutput> outputs) {
                                                   replies.take(std::move(outputs));
                                                 }));
  const std::uint64_t total = items.size();
  // A few wait in the queue, so that a free place is taken within the step.
  const auto in_flight = static_cast<std::size_t>(2 * options.rows);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t done = replies.wait_below(in_flight);
    if (options.progress) options.progress(done, total);
    const Result<std::uint64_t> id = engine->submit(request_of(items[i], options));
    // An engine that has stopped says why in the replies.
    if (!id.ok()) return stopped(*engine, replies, id.status());
    replies.expect(*id, i);
  }
  for (std::size_t left = in_flight; left > 0; --left) {
    const std::size_t done = replies.wait_below(left);
    if (options.progress) options.progress(done, total);
  }
  const EngineStats stats = engine->stats();
  const Status end = stats.failed
                         ? stopped(*engine, replies, {Code::kInternal, "engine", "stopped"})
                         : ok_status();
  engine.reset();
  ML_RETURN_IF_ERROR(end);
  EvalReport report = summarize(items, replies, options);
  report.steps = stats.steps;
  report.speculation = stats.speculation;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace monolayer::engine

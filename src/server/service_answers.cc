// Answers in the making: requests to the engine, and what it gives to their streams.
#include <chrono>
#include <cstdio>
#include <iterator>
#include <utility>

#include "server/service.h"
#include "server/service_job.h"

namespace monolayer::server {
namespace {

using Clock = std::chrono::steady_clock;

void append(engine::RequestOutput& held, engine::RequestOutput more) {
  held.tokens.insert(held.tokens.end(), more.tokens.begin(), more.tokens.end());
  held.text += more.text;
  std::move(more.logprobs.begin(), more.logprobs.end(), std::back_inserter(held.logprobs));
  std::move(more.prompt_logprobs.begin(), more.prompt_logprobs.end(),
            std::back_inserter(held.prompt_logprobs));
  held.finish = more.finish;
  held.stop_string = std::move(more.stop_string);
  held.stop_id = more.stop_id;
  held.error = std::move(more.error);
  held.cached_tokens = more.cached_tokens;
  held.preemptions = more.preemptions;
  held.times = more.times;
}

}  // namespace

void Service::submit(GenerationSpec made, const Out& out, Dialect dialect) {
  const bool anthropic = dialect == Dialect::kMessages;
  if (draining_) return refuse(out, unavailable("the server is shutting down"), anthropic);
  const auto spec = std::make_shared<const GenerationSpec>(std::move(made));
  std::vector<std::uint64_t> ids;
  for (const auto& prompt : spec->prompts) {
    std::vector<engine::Request> requests;
    for (std::int64_t i = 0; i < spec->n; ++i) {
      engine::Request request = spec->base;
      request.prompt = prompt;
      request.sampling.seed += static_cast<std::uint64_t>(i);
      requests.push_back(std::move(request));
    }
    auto submitted = engine_->submit_all(std::move(requests), true);
    if (submitted.ok()) {
      ids.insert(ids.end(), submitted->begin(), submitted->end());
      continue;
    }
    for (const std::uint64_t id : ids) engine_->abort(id);
    const Status status = submitted.status();
    if (status.code() != Code::kInvalidArgument)
      return refuse(out, unavailable(status.to_string()), anthropic);
    return refuse(out, bad_field(status.subject(), status.message()), anthropic);
  }
  auto job = std::make_shared<Job>();
  job->out = out;
  job->spec = spec;
  job->ids = ids;
  job->unfinished = ids.size();
  job->held.resize(ids.size());
  job->waiting.resize(ids.size(), false);
  job->first.resize(ids.size(), true);
  job->generated.resize(ids.size(), 0);
  job->last.resize(ids.size(), Clock::now());
  job->last_sent = Clock::now();
  for (std::size_t i = 0; i < ids.size(); ++i) by_id_[ids[i]] = {job, i};
  jobs_[job.get()] = job;
  const std::weak_ptr<Job> weak = job;
  out->on_gone = [this, weak] {
    if (const auto lost = weak.lock()) drop(lost);
  };
  out->on_idle = [this, weak] {
    const auto idle = weak.lock();
    for (std::size_t i = 0; idle && i < idle->ids.size(); ++i)
      if (idle->waiting[i] && !idle->out->busy()) deliver(idle, i);
  };
  job->answer = make_answer(out, spec, *model_);
}

// Takes an answer out; what of it still runs is aborted.
void Service::drop(const std::shared_ptr<Job>& job) {
  bool aborted = false;
  for (const std::uint64_t id : job->ids) {
    if (by_id_.erase(id) == 0) continue;
    engine_->abort(id);
    aborted = true;
  }
  if (aborted && !job->annotated) {
    job->finish += job->finish.empty() ? "abort" : ",abort";
    job->annotate();
  }
  jobs_.erase(job.get());
}

void Service::outputs(std::vector<engine::RequestOutput> outputs) {
  auto batch = std::make_shared<std::vector<engine::RequestOutput>>(std::move(outputs));
  http_.post([this, alive = alive_, batch] {
    if (!*alive) return;
    for (engine::RequestOutput& output : *batch) take(std::move(output));
  });
}

void Service::take(engine::RequestOutput output) {
  const auto at = by_id_.find(output.id);
  if (at == by_id_.end()) return;
  const auto [job, index] = at->second;
  const auto tokens = static_cast<std::int64_t>(output.tokens.size());
  const auto now = Clock::now();
  metrics_->tokens(tokens, job->first[index],
                   std::chrono::duration<double>(now - job->last[index]).count());
  job->generated[index] += tokens;
  if (tokens > 0) job->last[index] = now;
  if (tokens > 0 && job->first_token < 0)
    job->first_token = std::chrono::duration<double>(now - job->taken).count();
  const bool finished = output.finish.has_value();
  if (finished) {
    job->cached_tokens += output.cached_tokens;
    if (!job->finish.empty()) job->finish += ',';
    job->finish += engine::finish_name(*output.finish);
    metrics_->finished(
        output,
        static_cast<std::int64_t>(
            job->spec->prompts[index / static_cast<std::size_t>(job->spec->n)].size()),
        job->generated[index]);
    by_id_.erase(at);
  }
  if (job->waiting[index]) {
    append(job->held[index], std::move(output));
  } else {
    job->held[index] = std::move(output);
    job->waiting[index] = true;
  }
  // A slow client gets more at once, later; its tokens do not pile up as chunks.
  const bool enough =
      job->first[index] || finished ||
      static_cast<std::int64_t>(job->held[index].tokens.size()) >= options_.stream_interval;
  if (tokens > 0) job->first[index] = false;
  if (!job->spec->stream || (enough && !job->out->busy())) deliver(job, index);
}

void Service::deliver(const std::shared_ptr<Job>& job, std::size_t index) {
  job->waiting[index] = false;
  engine::RequestOutput output = std::exchange(job->held[index], {});
  const bool finished = output.finish.has_value();
  const bool failed = output.finish == engine::FinishReason::kError;
  // A lost rank is said by whoever watches the ranks.
  if (failed && !failure_said_ && output.error.code() == Code::kIoError) {
    failure_said_ = true;
    std::fprintf(stderr, "monolayer: error: %s\n", output.error.to_string().c_str());
  }
  job->last_sent = Clock::now();
  if (finished && (failed || job->unfinished == 1)) job->annotate();
  job->answer->output(index, std::move(output));
  if (failed) {
    metrics_->http(500);
    return drop(job);
  }
  if (!finished || --job->unfinished > 0) return;
  metrics_->http(200);
  job->answer->complete();
  jobs_.erase(job.get());
}

void Service::ping_streams() {
  http_.after(1000, [this, alive = alive_] {
    if (!*alive) return;
    const auto limit = std::chrono::seconds(options_.ping_seconds);
    for (const auto& [raw, job] : jobs_) {
      if (!job->spec->stream || Clock::now() - job->last_sent < limit || job->out->busy()) continue;
      job->last_sent = Clock::now();
      job->answer->ping();
    }
    ping_streams();
  });
}

void Service::drain(int seconds, std::function<void()> done) {
  draining_ = true;
  if (engine_ != nullptr) engine_->drain();
  const auto until = Clock::now() + std::chrono::seconds(seconds);
  const auto check = std::make_shared<std::function<void()>>();
  const auto aborted = std::make_shared<bool>(false);
  *check = [this, until, done = std::move(done), check, aborted] {
    if (jobs_.empty() || Clock::now() > until + std::chrono::seconds(5)) {
      done();
      *check = nullptr;
      return;
    }
    if (Clock::now() > until && !std::exchange(*aborted, true)) abort_all();
    http_.after(20, [check] {
      if (*check) (*check)();
    });
  };
  (*check)();
}

void Service::abort_all() {
  for (const auto& [id, at] : by_id_) engine_->abort(id);
}

}  // namespace monolayer::server

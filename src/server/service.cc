#include "server/service.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "server/messages_request.h"

namespace monolayer::server {
namespace {

using Clock = std::chrono::steady_clock;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Nothing a library throws leaves the room; a request that broke something is told so.
template <typename Work>
auto guarded(Work work) -> decltype(work()) {
  ApiError error;
  error.status = 500;
  try {
    return work();
  } catch (const std::bad_alloc&) {
    error.message = "out of memory";
  } catch (const std::exception& exception) {
    error.message = std::string("internal error: ") + exception.what();
  }
  return error;
}

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

std::string without_query_key(const HttpRequest& request) {
  std::string given = request.header("authorization");
  if (given.rfind("Bearer ", 0) == 0) return given.substr(7);
  return request.header("x-api-key");
}

// In time that does not depend on where they differ.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(i < b.size() ? b[i] : 0);
  return difference == 0;
}

}  // namespace

namespace {

Json acceptance(const engine::SpeculationStats& s) {
  Json at = Json::array(), steps = Json::array();
  for (std::int64_t i = 0; i < s.tokens; ++i)
    at.push_back(s.accepted_at[static_cast<std::size_t>(i)]);
  for (std::int64_t i = 0; i <= s.tokens && s.tokens > 0; ++i)
    steps.push_back(s.steps_accepting[static_cast<std::size_t>(i)]);
  return {{"num_speculative_tokens", s.tokens},
          {"synthetic", s.synthetic},
          {"steps", s.steps},
          {"draft_tokens", s.guesses},
          {"accepted_tokens", s.accepted},
          {"accepted_per_position", at},
          {"steps_by_accepted_tokens", steps},
          {"failures", s.failures}};
}

}  // namespace

struct Service::Job {
  std::shared_ptr<Responder> out;
  std::unique_ptr<Answer> answer;
  std::shared_ptr<const GenerationSpec> spec;
  std::vector<std::uint64_t> ids;
  std::vector<engine::RequestOutput> held;
  std::vector<bool> waiting, first;
  std::vector<std::int64_t> generated;
  std::vector<Clock::time_point> last;
  std::int64_t cached_tokens = 0;
  std::string finish;       // of each answer, in the order of their ends
  double first_token = -1;  // seconds after the request was taken
  Clock::time_point taken = Clock::now();
  std::size_t unfinished = 0;
  bool annotated = false;

  // For the access log.
  void annotate() {
    annotated = true;
    std::int64_t completion = 0;
    for (const std::int64_t n : generated) completion += n;
    out->note += (out->note.empty() ? "" : ",") +
                 ("\"prompt_tokens\":" + std::to_string(spec->prompt_tokens())) +
                 ",\"completion_tokens\":" + std::to_string(completion) +
                 ",\"cached_tokens\":" + std::to_string(cached_tokens) +
                 ",\"stream\":" + (spec->stream ? "true" : "false") + ",\"first_token_seconds\":" +
                 (first_token < 0 ? "null" : std::to_string(first_token)) +
                 ",\"finish_reason\":\"" + finish + "\"";
  }
  Clock::time_point last_sent;
};

Service::Service(HttpServer& http, ServiceOptions options)
    : http_(http), options_(std::move(options)), workers_(options_.workers, 8192) {
  ping_streams();
}

Service::~Service() { *alive_ = false; }

void Service::ready(std::shared_ptr<const ServedModel> model, engine::Engine* engine,
                    const dispatch::ChainPolicy* policy, Json server_info) {
  model_ = std::move(model);
  engine_ = engine;
  policy_ = policy;
  options_.server_info = std::move(server_info);
  metrics_ = std::make_unique<Metrics>(model_->names.front());
}

void Service::respond(const Out& out, int status, const std::string& type, std::string body,
                      const Headers& headers) {
  if (metrics_) metrics_->http(status);
  out->respond(status, type, std::move(body), headers);
}

void Service::refuse(const Out& out, const ApiError& error, bool anthropic) {
  Headers headers;
  if (error.retry_after > 0) headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  if (error.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  respond(out, error.status, "application/json", anthropic ? error.anthropic() : error.openai(),
          headers);
}

ApiError Service::unavailable(const std::string& why) const {
  ApiError error;
  error.status = 503;
  error.message = why;
  error.retry_after = 5;
  return error;
}

bool Service::healthy() const {
  if (engine_ == nullptr || draining_) return false;
  const engine::EngineStats stats = engine_->stats();
  return !stats.failed && stats.seconds_without_progress < options_.stuck_seconds;
}

std::string Service::models() const {
  Json list = {{"object", "list"}, {"data", Json::array()}};
  for (const std::string& name : model_->names)
    list["data"].push_back({{"id", name},
                            {"object", "model"},
                            {"created", 0},
                            {"owned_by", "monolayer"},
                            {"root", model_->names.front()},
                            {"max_model_len", model_->max_model_len}});
  return dump(list);
}

void Service::handle(HttpRequest request, const Out& out) {
  if (const auto id = request.headers.find("x-request-id"); id != request.headers.end())
    out->note = "\"request_id\":" + dump(Json(id->second.substr(0, 256)));
  if (request.path == "/health" || request.path == "/ready") {
    const bool ok = healthy();
    const std::string state = engine_ == nullptr ? "loading" : draining_ ? "draining" : "failed";
    return respond(out, ok ? 200 : 503, "application/json", dump({{"status", ok ? "ok" : state}}));
  }
  const bool anthropic = request.path.rfind("/v1/messages", 0) == 0;
  if (!options_.api_key.empty() && !same_secret(options_.api_key, without_query_key(request))) {
    ApiError error;
    error.status = 401;
    error.message = "authorization: the API key is missing or wrong";
    error.code = "invalid_api_key";
    return refuse(out, error, anthropic);
  }
  if (engine_ == nullptr) return refuse(out, unavailable("the model is being loaded"), anthropic);
  route(request, out);
}

void Service::route(HttpRequest& request, const Out& out) {
  const auto is = [&](const char* method, const char* path) {
    return request.path == path && request.method == method;
  };
  if (is("POST", "/v1/chat/completions")) return generate(std::move(request), out, Dialect::kChat);
  if (is("POST", "/v1/completions")) return generate(std::move(request), out, Dialect::kCompletion);
  if (is("POST", "/v1/messages")) return generate(std::move(request), out, Dialect::kMessages);
  if (is("POST", "/v1/messages/count_tokens")) return count_tokens(std::move(request), out);
  if (is("POST", "/tokenize")) return tokenize(std::move(request), out);
  if (is("POST", "/detokenize")) return detokenize(std::move(request), out);
  if (is("GET", "/v1/models")) return respond(out, 200, "application/json", models());
  if (is("GET", "/version"))
    return respond(out, 200, "application/json", dump({{"version", options_.version}}));
  if (is("GET", "/server_info"))
    return respond(out, 200, "application/json", dump(options_.server_info));
  if (is("GET", "/debug/mtp_stats"))
    return respond(out, 200, "application/json", dump(acceptance(engine_->stats().speculation)));
  if (is("GET", "/metrics") || is("HEAD", "/metrics"))
    return respond(out, 200, "text/plain; version=0.0.4; charset=utf-8",
                   metrics_->text(engine_->stats(), policy_->counters(), http_.connections()));
  static const char* known[] = {"/v1/chat/completions",
                                "/v1/completions",
                                "/v1/messages",
                                "/v1/messages/count_tokens",
                                "/tokenize",
                                "/detokenize",
                                "/v1/models",
                                "/version",
                                "/server_info",
                                "/debug/mtp_stats",
                                "/metrics"};
  ApiError error;
  error.status = 404;
  error.message = request.method + " " + request.path + ": there is no such route";
  for (const char* path : known)
    if (request.path == path) {
      error.status = 405;
      error.message = request.method + " " + request.path + ": the route takes another method";
    }
  refuse(out, error);
}

void Service::generate(HttpRequest request, const Out& out, Dialect dialect) {
  const bool anthropic = dialect == Dialect::kMessages;
  if (draining_) return refuse(out, unavailable("the server is shutting down"), anthropic);
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  out->on_gone = [gone] { *gone = true; };
  auto work = [this, out, dialect, gone, model = model_,
               body = std::make_shared<std::string>(std::move(request.body))] {
    if (*gone) return;
    auto spec =
        std::make_shared<ApiResult<GenerationSpec>>(guarded([&]() -> ApiResult<GenerationSpec> {
          auto json = parse_body(*body, options_.limits.nesting);
          if (auto* error = std::get_if<ApiError>(&json)) return *error;
          const Json& object = std::get<Json>(json);
          if (dialect == Dialect::kChat) return parse_chat_request(object, *model, options_.limits);
          if (dialect == Dialect::kMessages)
            return parse_messages_request(object, *model, options_.limits, true);
          return parse_completion_request(object, *model, options_.limits);
        }));
    http_.post([this, alive = alive_, out, dialect, gone, spec] {
      if (!*alive || *gone) return;
      if (const auto* error = std::get_if<ApiError>(spec.get()))
        return refuse(out, *error, dialect == Dialect::kMessages);
      submit(std::move(std::get<GenerationSpec>(*spec)), out, dialect);
    });
  };
  if (!workers_.run(std::move(work))) refuse(out, unavailable("too many requests wait"), anthropic);
}

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
    job->finish +=
        (job->finish.empty() ? "" : ",") + std::string(engine::finish_name(*output.finish));
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

void Service::tokenize(HttpRequest request, const Out& out) {
  const auto body = std::make_shared<std::string>(std::move(request.body));
  const bool taken = workers_.run([this, out, body, model = model_] {
    auto answer = std::make_shared<ApiResult<Json>>(guarded([&]() -> ApiResult<Json> {
      auto json = parse_body(*body, options_.limits.nesting);
      if (auto* error = std::get_if<ApiError>(&json)) return *error;
      Json object = std::get<Json>(json);
      if (!object.contains("model")) object["model"] = model->names.front();
      const bool chat = object.contains("messages");
      if (!chat) object["max_tokens"] = 1;
      auto spec = chat ? parse_chat_request(object, *model, options_.limits)
                       : parse_completion_request(object, *model, options_.limits);
      if (auto* error = std::get_if<ApiError>(&spec)) return *error;
      const auto& ids = std::get<GenerationSpec>(spec).prompts.front();
      return Json{{"count", ids.size()}, {"max_model_len", model->max_model_len}, {"tokens", ids}};
    }));
    http_.post([this, alive = alive_, out, answer] {
      if (!*alive) return;
      if (const auto* error = std::get_if<ApiError>(answer.get())) return refuse(out, *error);
      respond(out, 200, "application/json", dump(std::get<Json>(*answer)));
    });
  });
  if (!taken) refuse(out, unavailable("too many requests wait"));
}

void Service::detokenize(HttpRequest request, const Out& out) {
  const auto answer = guarded([&]() -> ApiResult<Json> {
    auto json = parse_body(request.body, options_.limits.nesting);
    if (auto* error = std::get_if<ApiError>(&json)) return *error;
    Json object = std::get<Json>(json);
    if (!object.contains("tokens") || !object.at("tokens").is_array())
      return bad_field("tokens", "must be a list of tokens");
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < object.at("tokens").size(); ++i) {
      const Json& id = object.at("tokens")[i];
      if (!id.is_number_integer() || id.get<double>() < 0 ||
          id.get<double>() >= static_cast<double>(model_->vocab_size))
        return bad_field("tokens[" + std::to_string(i) + "]",
                         "must be a token from 0 to " + std::to_string(model_->vocab_size - 1));
      ids.push_back(id.get<std::int32_t>());
    }
    return Json{{"prompt", model_->tokenizer.decode(ids)}};
  });
  if (const auto* error = std::get_if<ApiError>(&answer)) return refuse(out, *error);
  respond(out, 200, "application/json", dump(std::get<Json>(answer)));
}

void Service::count_tokens(HttpRequest request, const Out& out) {
  const auto body = std::make_shared<std::string>(std::move(request.body));
  const bool taken = workers_.run([this, out, body, model = model_] {
    auto answer = std::make_shared<ApiResult<Json>>(guarded([&]() -> ApiResult<Json> {
      auto json = parse_body(*body, options_.limits.nesting);
      if (auto* error = std::get_if<ApiError>(&json)) return *error;
      auto spec = parse_messages_request(std::get<Json>(json), *model, options_.limits, false);
      if (auto* error = std::get_if<ApiError>(&spec)) return *error;
      return Json{{"input_tokens", std::get<GenerationSpec>(spec).prompt_tokens()}};
    }));
    http_.post([this, alive = alive_, out, answer] {
      if (!*alive) return;
      if (const auto* error = std::get_if<ApiError>(answer.get())) return refuse(out, *error, true);
      respond(out, 200, "application/json", dump(std::get<Json>(*answer)));
    });
  });
  if (!taken) refuse(out, unavailable("too many requests wait"), true);
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

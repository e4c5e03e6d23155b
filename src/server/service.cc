#include "server/service.h"

#include <utility>

#include "server/messages_request.h"

namespace monolayer::server {
namespace {

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

}  // namespace monolayer::server

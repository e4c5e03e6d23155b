// Routes requests, keeps the answers in the making, and carries the engine's outputs to them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "dispatch/chain_policy.h"
#include "engine/engine.h"
#include "server/answer.h"
#include "server/generation_spec.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/worker_pool.h"

namespace monolayer::server {

struct ServiceOptions {
  Limits limits;
  std::string api_key;               // empty: everybody
  std::int64_t stream_interval = 1;  // tokens of a stream's chunk at the least
  int stuck_seconds = 120;           // unhealthy when the engine stands still that long
  int ping_seconds = 10;
  Json server_info = Json::object();
  std::string version;
  int workers = 2;  // threads that parse, render and encode
};

// All members on the HTTP server's thread unless they say otherwise.
class Service {
 public:
  Service(HttpServer& http, ServiceOptions options);
  ~Service();

  // The model is loaded: requests are taken from now on. Borrows the engine and the decisions.
  void ready(std::shared_ptr<const ServedModel> model, engine::Engine* engine,
             const dispatch::ChainPolicy* policy, Json server_info);
  void handle(HttpRequest request, const std::shared_ptr<Responder>& out);
  // Any thread: what the engine's sink is given.
  void outputs(std::vector<engine::RequestOutput> outputs);
  // New requests get 503; `done` is called once the present ones are answered, or after `seconds`
  // when the rest has been aborted.
  void drain(int seconds, std::function<void()> done);
  // Ends a drain's patience.
  void abort_all();
  std::size_t open_answers() const { return jobs_.size(); }

 private:
  struct Job;
  using Out = std::shared_ptr<Responder>;
  void respond(const Out& out, int status, const std::string& type, std::string body,
               const Headers& headers = {});
  void refuse(const Out& out, const ApiError& error, bool anthropic = false);
  void route(HttpRequest& request, const Out& out);
  void generate(HttpRequest request, const Out& out, Dialect dialect);
  void submit(GenerationSpec spec, const Out& out, Dialect dialect);
  void tokenize(HttpRequest request, const Out& out);
  void detokenize(HttpRequest request, const Out& out);
  void count_tokens(HttpRequest request, const Out& out);
  void take(engine::RequestOutput output);
  void deliver(const std::shared_ptr<Job>& job, std::size_t index);
  void drop(const std::shared_ptr<Job>& job);
  void ping_streams();
  bool healthy() const;
  std::string models() const;
  ApiError unavailable(const std::string& why) const;

  HttpServer& http_;
  ServiceOptions options_;
  std::shared_ptr<const ServedModel> model_;
  engine::Engine* engine_ = nullptr;
  const dispatch::ChainPolicy* policy_ = nullptr;
  std::unique_ptr<Metrics> metrics_;
  bool draining_ = false, failure_said_ = false;
  std::unordered_map<std::uint64_t, std::pair<std::shared_ptr<Job>, std::size_t>> by_id_;
  std::map<Job*, std::shared_ptr<Job>> jobs_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  WorkerPool workers_;  // last: its threads end before the rest goes
};

}  // namespace monolayer::server

#include "server/serve.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "engine/draft_model.h"
#include "engine/engine.h"
#include "engine/native_run.h"
#include "server/access_log.h"
#include "server/served_model.h"
#include "server/service.h"

namespace monolayer::server {
namespace {

struct Loaded {
  std::unique_ptr<engine::OpenModel> model;
  std::unique_ptr<engine::OpenDraft> draft;          // null: no speculation
  std::unique_ptr<engine::RankProcesses> processes;  // null: ranks are threads
  std::unique_ptr<engine::NativeRun> run;
  std::unique_ptr<engine::DraftRun> draft_run;
  std::shared_ptr<ServedModel> served;
  std::int64_t tokens = 0;  // of the pool
  engine::EngineOptions engine_options;
  std::unique_ptr<engine::NativeModel> steps;
  std::unique_ptr<engine::Engine> engine;  // first to go
  Json info;
};

// The pool's tokens: enough for one sequence of full length, else what was asked for.
Result<std::int64_t> pool_tokens(const ServeOptions& options, const m3::ModelConfig& config,
                                 std::int64_t draft_block_bytes) {
  ML_ASSIGN_OR_RETURN(const cpu::CacheOptions cache,
                      engine::cache_options(options.cache_types, options.backend));
  const std::int64_t page = cpu::CachePool::page_bytes(config, cache) + draft_block_bytes;
  const std::int64_t wanted = (options.max_model_len + m3::kPageTokens - 1) / m3::kPageTokens;
  std::int64_t pages = options.num_blocks;
  if (pages == 0) {
    const std::int64_t bytes =
        options.kv_cache_bytes > 0 ? options.kv_cache_bytes : std::int64_t{1} << 30;
    pages = bytes / page;
    if (options.kv_cache_bytes == 0) pages = std::max(pages, wanted);
  }
  pages = std::min(pages, (config.max_positions + m3::kPageTokens - 1) / m3::kPageTokens);
  if (pages < std::max<std::int64_t>(wanted, 1))
    return Status(Code::kResourceExhausted, "--max-model-len",
                  "is " + std::to_string(options.max_model_len) + " tokens, the caches hold " +
                      std::to_string(pages * m3::kPageTokens));
  return std::min(pages * m3::kPageTokens, config.max_positions);
}

std::int64_t draft_block_bytes(const Loaded& loaded) {
  return loaded.draft == nullptr ? 0 : loaded.draft->block_bytes(loaded.model->config);
}

// Everything that can be refused without reading weights.
Result<std::unique_ptr<Loaded>> prepare(const ServeOptions& options) {
  auto loaded = std::make_unique<Loaded>();
  ML_ASSIGN_OR_RETURN(loaded->model, engine::open_model(options.model_folder));
  const m3::ModelConfig& config = loaded->model->config;
  if (options.max_model_len > config.max_positions)
    return Status(Code::kInvalidArgument, "--max-model-len",
                  "is " + std::to_string(options.max_model_len) + ", the model takes at most " +
                      std::to_string(config.max_positions));
  if (!options.speculation.draft.empty()) {
    ML_ASSIGN_OR_RETURN(loaded->draft, engine::open_draft(options.speculation.draft, config));
  }
  ML_ASSIGN_OR_RETURN(loaded->tokens, pool_tokens(options, config, draft_block_bytes(*loaded)));
  engine::SchedulerOptions& scheduler = loaded->engine_options.scheduler;
  scheduler.max_sequences = options.max_num_seqs;
  scheduler.max_step_tokens = options.max_num_batched_tokens;
  scheduler.max_model_len = options.max_model_len > 0
                                ? options.max_model_len
                                : std::min(config.max_positions, loaded->tokens);
  scheduler.chunked_prefill = options.chunked_prefill;
  scheduler.long_prefill_threshold = options.long_prefill_token_threshold;
  loaded->engine_options.prefix_caching = options.prefix_caching;
  loaded->engine_options.max_waiting = options.max_waiting;
  if (loaded->draft != nullptr) scheduler.speculative_tokens = options.speculation.options.tokens;
  ML_RETURN_IF_ERROR(engine::Scheduler::check(scheduler));
  ML_ASSIGN_OR_RETURN(loaded->served,
                      served_model(*loaded->model, options.served_names, scheduler.max_model_len,
                                   options.chat_template_kwargs));
  return loaded;
}

// Before there are threads.
Status start_processes(const ServeOptions& options, Loaded& loaded) {
  if (options.ranks == 1 || !options.rank_processes) return ok_status();
  engine::RankProcessOptions ranks;
  ranks.ranks = static_cast<int>(options.ranks);
  ranks.threads = static_cast<int>(options.threads);
  ML_ASSIGN_OR_RETURN(ranks.cache, engine::cache_options(options.cache_types, options.backend));
  ranks.pages = (loaded.tokens + m3::kPageTokens - 1) / m3::kPageTokens;
  ranks.longest_tokens = loaded.engine_options.scheduler.max_model_len;
  ranks.path = options.path;
  ML_ASSIGN_OR_RETURN(loaded.processes, engine::RankProcesses::start(*loaded.model, ranks));
  return ok_status();
}

Status load(const ServeOptions& options, engine::Engine::Sink sink, Loaded& loaded) {
  engine::NativeRunOptions run_options;
  run_options.backend = options.backend;
  run_options.threads = static_cast<int>(options.threads);
  run_options.cache_types = options.cache_types;
  run_options.context_tokens = loaded.tokens;
  run_options.longest_tokens = loaded.engine_options.scheduler.max_model_len;
  run_options.context_flag = "the KV cache";
  run_options.path = options.path;
  run_options.ranks = static_cast<int>(options.ranks);
  run_options.processes = loaded.processes.get();
  run_options.progress = options.progress;
  if (loaded.draft != nullptr) {
    run_options.draft_bytes = static_cast<std::int64_t>(loaded.draft->checkpoint.file_bytes());
    run_options.draft_block_bytes =
        loaded.draft->host_block_bytes(loaded.model->config, options.backend);
  }
  ML_ASSIGN_OR_RETURN(loaded.run, engine::NativeRun::load(*loaded.model, run_options));
  if (loaded.draft != nullptr) {
    ML_ASSIGN_OR_RETURN(loaded.draft_run,
                        engine::DraftRun::load(*loaded.draft, *loaded.model, *loaded.run,
                                               options.speculation.options));
    loaded.engine_options.speculator = &loaded.draft_run->speculator();
  }
  loaded.engine_options.team = &loaded.run->team();
  loaded.steps = std::make_unique<engine::NativeModel>(
      loaded.model->config, loaded.run->native(), loaded.run->pool(),
      [model = loaded.model.get(), draft = loaded.draft.get()] {
        ML_RETURN_IF_ERROR(model->checkpoint.verify_unchanged());
        return draft == nullptr ? ok_status() : draft->checkpoint.verify_unchanged();
      });
  ML_ASSIGN_OR_RETURN(loaded.engine, engine::Engine::start(*loaded.steps, loaded.served->tokenizer,
                                                           loaded.engine_options, std::move(sink)));
  loaded.info = options.flags;
  loaded.info["version"] = options.version;
  loaded.info["model_folder"] = loaded.model->folder;
  loaded.info["served_model_name"] = options.served_names;
  loaded.info["effective"] = {
      {"path", loaded.run->policy()->any_fused() ? options.path : "native"},
      {"path_reason", loaded.run->policy()->steps_reason()},
      {"tensor_parallel_size", options.ranks},
      {"ranks", loaded.processes != nullptr ? "processes" : "threads"},
      {"backend", options.backend},
      {"kernel", std::string(loaded.run->tiles().name)},
      {"threads", loaded.run->team().size()},
      {"max_model_len", loaded.engine_options.scheduler.max_model_len},
      {"max_num_seqs", options.max_num_seqs},
      {"max_num_batched_tokens", options.max_num_batched_tokens},
      {"kernel_family", loaded.run->kernel_family()},
      {"kv_cache_dtype", engine::cache_type_name(loaded.run->pool().options().kv)},
      {"index_cache_dtype", engine::cache_type_name(loaded.run->pool().options().index)},
      {"kv_cache_tokens", loaded.run->pool().pages() * m3::kPageTokens},
      {"num_gpu_blocks", loaded.run->pool().pages()},
      {"kv_cache_bytes", loaded.run->pool().bytes()},
      {"prefix_caching", options.prefix_caching},
      {"chunked_prefill", options.chunked_prefill},
      {"stream_interval", options.stream_interval},
      {"speculative_tokens", loaded.draft == nullptr ? 0 : options.speculation.options.tokens},
      {"draft_model", loaded.draft == nullptr ? "" : loaded.draft->folder},
      {"draft_cache_bytes", loaded.draft == nullptr ? 0 : loaded.draft_run->pool().bytes()},
      {"rejection_sample_method", options.speculation.acceptance},
      {"synthetic_acceptance", !options.speculation.options.synthetic_rates.empty()},
      {"synthetic_acceptance_rates", options.speculation.options.synthetic_rates}};
  return ok_status();
}

}  // namespace

Status serve(const ServeOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  ML_ASSIGN_OR_RETURN(std::unique_ptr<Loaded> loaded, prepare(options));
  ML_RETURN_IF_ERROR(start_processes(options, *loaded));
  HttpOptions http_options;
  http_options.host = options.host;
  http_options.port = static_cast<std::uint16_t>(options.port);
  const Limits limits;
  http_options.body_bytes = limits.body_bytes;
  http_options.header_bytes = limits.header_bytes;
  if (loaded->draft != nullptr && options.speculation.mean_length > 0) {
    http_options.always.emplace_back("x-monolayer-synthetic-acceptance",
                                     std::to_string(options.speculation.mean_length));
  }
  std::unique_ptr<AccessLog> log;  // outlives the server, which adds to it
  if (!options.request_log.empty()) {
    ML_ASSIGN_OR_RETURN(log, AccessLog::open(options.request_log));
    http_options.on_answered = [raw = log.get()](Access access) { raw->add(std::move(access)); };
  }
  ML_ASSIGN_OR_RETURN(const auto http, HttpServer::listen(http_options));

  ServiceOptions service_options;
  service_options.api_key = options.api_key;
  service_options.stream_interval = options.stream_interval;
  service_options.version = options.version;
  auto service = std::make_unique<Service>(*http, service_options);

  // A start that fails at once says so and nothing else; a long one says where it listens.
  bool said = false;
  const auto say_address = [&] {
    if (!std::exchange(said, true) && options.on_listening) options.on_listening(http->port());
  };
  http->after(1000, say_address);

  Status failure;
  bool is_ready = false, stopping = false;
  std::atomic<bool> load_ended = false;
  std::thread loader([&] {
    const Status status = load(
        options,
        [raw = service.get()](std::vector<engine::RequestOutput> outputs) {
          raw->outputs(std::move(outputs));
        },
        *loaded);
    load_ended = true;
    http->post([&, status] {
      if (!status.ok()) {
        failure = status;
        http->stop();
        return;
      }
      is_ready = true;
      say_address();
      loaded->info["effective"]["seconds_to_ready"] =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
      service->ready(loaded->served, loaded->engine.get(), loaded->run->policy(), loaded->info);
      if (options.on_ready) options.on_ready(loaded->info);
    });
  });
  // The loading thread waits for a rank that is gone and cannot be had back.
  const auto end_loading = [](const Status& health) {
    std::fprintf(stderr, "monolayer: error: %s\n", health.to_string().c_str());
    std::_Exit(2);
  };
  // A rank that is gone takes the server with it: running answers get their error, then all ends.
  std::function<void()> watch = [&] {
    const Status health = loaded->processes->health();
    if (health.ok()) return http->after(100, [&] { watch(); });
    if (!is_ready) end_loading(health);
    failure = health;
    service->drain(1, [&] { http->after(200, [&] { http->stop(); }); });
  };
  if (loaded->processes != nullptr) http->after(100, [&] { watch(); });
  http->run(
      [&](HttpRequest request, const std::shared_ptr<Responder>& out) {
        service->handle(std::move(request), out);
      },
      [&](int) {
        if (std::exchange(stopping, true)) {
          if (is_ready) service->abort_all();
          return;
        }
        if (!is_ready) return http->stop();
        service->drain(static_cast<int>(options.grace_seconds), [&] {
          // Answers that are written but not yet out get a moment.
          http->after(50, [&] { http->stop(); });
        });
      });
  while (loaded->processes != nullptr && !load_ended) {  // stopped while loading: nobody watches
    if (const Status health = loaded->processes->health(); !health.ok()) end_loading(health);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  loader.join();
  // While the HTTP server is there its signals are caught: the end of ranks that do not answer
  // takes seconds, in which another SIGTERM must not cut it short.
  loaded->engine.reset();
  service.reset();
  loaded.reset();
  return failure;
}

}  // namespace monolayer::server

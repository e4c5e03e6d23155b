// `monolayer serve`: the HTTP server, with flags named as vllm's.
#include <cstdio>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/progress.h"
#include "engine/embedded_model.h"
#include "engine/native_run.h"
#include "m3/draft.h"
#include "server/serve.h"

namespace monolayer::cli {
namespace {

struct ServeFlags {
  std::string model;
  std::vector<std::string> served_names;
  std::int64_t server_port = 0, block_size = 128;
  std::string reasoning_parser = "minimax_m3", tool_parser = "minimax_m3";
  bool no_prefix_caching = false, no_chunked_prefill = false, ignored = false, quiet = false;
  RunFlags run;
  server::ServeOptions options;
  server::SpeculativeFlags speculative;
  std::string executor = "threads";
  std::int64_t speculative_tokens = 0;
  double acceptance_length = 0, acceptance_rate = 0;
  CLI::Option *tokens_set = nullptr, *length_set = nullptr, *rate_set = nullptr;
  CLI::App* app = nullptr;
  CLI::Option* server_port_set = nullptr;
};

// Every flag with the value it has now, given or not.
server::Json effective(const CLI::App& app) {
  server::Json all = server::Json::object();
  for (const CLI::Option* option : app.get_options()) {
    std::string name = option->get_name();
    name.erase(0, name.find_first_not_of('-'));
    if (name == "help") continue;
    if (name == "api-key") {
      all[name] = option->count() > 0 ? "set" : "";
      continue;
    }
    std::string value;
    for (const std::string& each : option->results()) value += (value.empty() ? "" : " ") + each;
    all[name] = option->count() > 0 ? server::Json(value) : server::Json("default");
  }
  return all;
}

Status choose_speculation(ServeFlags& flags) {
  server::SpeculativeFlags& wish = flags.speculative;
  if (flags.tokens_set->count() > 0) wish.tokens = flags.speculative_tokens;
  if (flags.length_set->count() > 0) wish.length = flags.acceptance_length;
  if (flags.rate_set->count() > 0) wish.rate = flags.acceptance_rate;
  if (flags.model.empty()) {
    if (const auto own = engine::embedded_draft_folder(); own.ok()) wish.own_draft = *own;
  }
  ML_ASSIGN_OR_RETURN(flags.options.speculation, server::choose_speculation(wish));
  return ok_status();
}

Status run_serve(ServeFlags& flags) {
  server::ServeOptions& options = flags.options;
  ML_RETURN_IF_ERROR(flags.run.check());
  ML_RETURN_IF_ERROR(engine::check_backend(flags.run.backend));
  if (flags.run.backend == "cuda" && flags.executor == "mp" && flags.run.tensor_parallel_size > 1)
    return {Code::kUnsupported, "--distributed-executor-backend",
            "is mp, which runs on cpu; with cuda ranks are threads, a device each"};
  ML_RETURN_IF_ERROR(engine::cache_options(flags.run.cache_types, flags.run.backend).status());
  if (flags.block_size != 128)
    return {Code::kUnsupported, "--block-size",
            "is " + std::to_string(flags.block_size) + ", this model's blocks have 128 tokens"};
  if (options.api_key.empty() && flags.app->get_option("--api-key")->count() > 0)
    return {Code::kInvalidArgument, "--api-key", "is empty; leave it out to let everybody in"};
  ML_RETURN_IF_ERROR(choose_speculation(flags));
  if (flags.server_port_set->count() > 0) options.port = flags.server_port;
  ML_ASSIGN_OR_RETURN(options.model_folder, model_or_embedded(flags.model));
  options.model_flag = flags.model.empty() ? "nano" : flags.model;
  options.served_names = flags.served_names;
  if (options.served_names.empty()) options.served_names = {options.model_flag};
  for (std::string& name : options.served_names)
    while (name.size() > 1 && name.back() == '/') name.pop_back();
  options.prefix_caching = !flags.no_prefix_caching;
  options.chunked_prefill = !flags.no_chunked_prefill;
  options.threads = flags.run.threads;
  options.path = flags.run.path;
  options.backend = flags.run.backend;
  options.ranks = flags.run.tensor_parallel_size;
  options.rank_processes = flags.executor == "mp";
  options.cache_types = flags.run.cache_types;
  options.version = MONOLAYER_VERSION;
  options.flags = server::Json{{"flags", effective(*flags.app)}};
  const auto progress = std::make_shared<Progress>("loading", flags.quiet);
  options.progress = [progress](const ReadProgress& p) {
    progress->update(p.bytes_done, p.bytes_total);
  };
  options.on_listening = [&options](std::uint16_t port) {
    std::fprintf(stderr, "listening on http://%s:%u\n", options.host.c_str(),
                 static_cast<unsigned>(port));
  };
  options.on_ready = [progress, wanted = options.num_blocks](const server::Json& info) {
    progress->finish();
    const server::Json& e = info.at("effective");
    const auto blocks = e.at("num_gpu_blocks").get<std::int64_t>();
    if (wanted > blocks)
      std::fprintf(stderr,
                   "--num-gpu-blocks-override: %lld blocks are more than the longest context has, "
                   "%lld are made\n",
                   static_cast<long long>(wanted), static_cast<long long>(blocks));
    std::fprintf(stderr, "path: %s (%s)\n", e.at("path").get<std::string>().c_str(),
                 e.at("path_reason").get<std::string>().c_str());
    if (const auto family = e.at("kernel_family").get<std::string>(); !family.empty())
      std::fprintf(stderr, "kernels: %s\n", family.c_str());
    std::fprintf(stderr, "%s KV cache size: %lld tokens\n",
                 e.at("backend").get<std::string>() == "cuda" ? "CUDA" : "CPU",
                 static_cast<long long>(e.at("kv_cache_tokens").get<std::int64_t>()));
    if (const auto tokens = e.at("speculative_tokens").get<std::int64_t>(); tokens > 0) {
      std::fprintf(stderr, "speculation: %lld tokens, draft %s%s\n", static_cast<long long>(tokens),
                   e.at("draft_model").get<std::string>().c_str(),
                   e.at("synthetic_acceptance").get<bool>()
                       ? "; acceptance is SYNTHETIC, answers are meaningless"
                       : "");
    }
    std::fprintf(stderr, "configuration: %s\nready\n", info.dump().c_str());
  };
  return server::serve(options);
}

}  // namespace

void add_serve(Program& program) {
  auto flags = std::make_shared<ServeFlags>();
  Flags& f = program.flags;
  server::ServeOptions& o = flags->options;
  CLI::App& app = program.add("serve", "HTTP server: OpenAI and Anthropic dialects",
                              [flags] { return run_serve(*flags); });
  flags->app = &app;
  f.folder(app, "--model", flags->model, "Folder or cached name; the embedded model if left out");
  app.add_option("--served-model-name", flags->served_names,
                 "Names clients may use; --model as typed if left out")
      ->type_name("NAME");
  f.text(app, "--host", o.host, "Address to listen on");
  f.integer(app, "--port", o.port, 0, 65535, "Port; 0: any free one");
  flags->server_port_set =
      f.integer(app, "--server-port", flags->server_port, 0, 65535, "The same, as ATOM calls it");
  f.text(app, "--api-key", o.api_key, "What clients must present; everybody may come if left out");
  f.integer(app, "--max-model-len", o.max_model_len, 1, std::int64_t{1} << 40,
            "Longest prompt and answer together; what model and caches take if left out");
  f.integer(app, "--kv-cache-memory-bytes", o.kv_cache_bytes, 1, std::int64_t{1} << 50,
            "Bytes of the caches; 1 GiB or what --max-model-len needs if left out");
  f.integer(app, "--num-gpu-blocks-override", o.num_blocks, 1, std::int64_t{1} << 40,
            "Blocks of 128 tokens, instead of --kv-cache-memory-bytes");
  f.integer(app, "--block-size", flags->block_size, 1, 1 << 20, "Tokens of a block: 128");
  f.integer(app, "--max-num-seqs", o.max_num_seqs, 1, 1 << 20, "Sequences of a step");
  f.integer(app, "--max-num-batched-tokens", o.max_num_batched_tokens, 1, std::int64_t{1} << 30,
            "Rows of a step");
  f.integer(app, "--long-prefill-token-threshold", o.long_prefill_token_threshold, 0,
            std::int64_t{1} << 30, "Rows of one prompt in a step; 0: all of them");
  f.integer(app, "--max-num-waiting", o.max_waiting, 1, 1 << 20,
            "Requests that may wait; more are answered 503");
  f.toggle(app, "--enable-prefix-caching", flags->ignored, "Share equal prefixes (the default)");
  f.toggle(app, "--no-enable-prefix-caching", flags->no_prefix_caching, "Do not");
  f.toggle(app, "--enable-chunked-prefill", flags->ignored, "Cut prompts (the default)");
  f.toggle(app, "--no-enable-chunked-prefill", flags->no_chunked_prefill,
           "Refuse prompts longer than a step");
  f.text(app, "--speculative-config", flags->speculative.config,
         "JSON object: method, model, num_speculative_tokens, rejection_sample_method, "
         "synthetic_acceptance_length");
  f.text(app, "--method", flags->speculative.method, "eagle3, with --draft-model");
  f.folder(app, "--draft-model", flags->speculative.draft_model,
           "Draft: folder or cached name, with --method");
  flags->tokens_set = f.integer(app, "--num-speculative-tokens", flags->speculative_tokens, 0,
                                m3::kMostDrafts, "Guesses of a step; 0 loads no draft");
  flags->length_set =
      f.real(app, "--spec-decode-acceptance-length", flags->acceptance_length, 1,
             static_cast<double>(m3::kMostDrafts + 1), false,
             "Benches: acceptance by coins, with this many tokens a step on average");
  flags->rate_set = f.real(app, "--spec-decode-acceptance-rate", flags->acceptance_rate, 0, 1,
                           false, "The same as (length - 1) / guesses");
  f.choice(app, "--distributed-executor-backend", flags->executor, {"threads", "mp"},
           "Tensor-parallel ranks: threads of this process, or processes");
  f.file(app, "--request-log", o.request_log,
         "One JSON line per answered request; - is standard error");
  f.toggle(app, "--disable-uvicorn-access-log", flags->ignored, "Nothing is logged by default");
  f.integer(app, "--stream-interval", o.stream_interval, 1, 1 << 20, "Tokens of a stream's chunk");
  f.text(app, "--default-chat-template-kwargs", o.chat_template_kwargs,
         "JSON object of template variables, e.g. {\"thinking_mode\":\"enabled\"}");
  f.choice(app, "--reasoning-parser", flags->reasoning_parser, {"minimax_m3"}, "How it thinks");
  f.choice(app, "--tool-call-parser", flags->tool_parser, {"minimax_m3"}, "How it calls tools");
  f.toggle(app, "--enable-auto-tool-choice", flags->ignored, "Always on");
  f.toggle(app, "--trust-remote-code", flags->ignored, "Accepted; no remote code is ever run");
  f.integer(app, "--shutdown-timeout", o.grace_seconds, 0, 3600,
            "Seconds for answers to finish after SIGTERM");
  flags->run.add(f, app, {"auto", "native", "mono"});
  f.toggle(app, "--quiet", flags->quiet, "No progress while loading");
}

}  // namespace monolayer::cli

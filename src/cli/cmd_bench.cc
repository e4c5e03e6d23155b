// `monolayer bench`: steps of a checkpoint against the machine's read stream, and servers.
#include <charconv>
#include <cstdio>
#include <map>
#include <memory>

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_writer.h"
#include "cli/bench_device.h"
#include "cli/bench_flags.h"
#include "engine/native_run.h"
#include "mono/executor.h"

namespace monolayer::cli {

Result<std::vector<std::int64_t>> numbers(const char* flag, const std::string& text,
                                          std::int64_t low, std::int64_t high) {
  std::vector<std::int64_t> values;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    std::int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < low || value > high || (next != end && *next != ','))
      return Status(Code::kInvalidArgument, flag,
                    "must be whole numbers from " + std::to_string(low) + " to " +
                        std::to_string(high) + ", separated by commas");
    values.push_back(value);
    if (next == end) return values;
    at = next + 1;
  }
}

Status bench_serve(const BenchFlags& flags) {
  ML_ASSIGN_OR_RETURN(const server::ServeBenchReport report, server::bench_serve(flags.serve));
  if (!flags.svg.empty())
    ML_RETURN_IF_ERROR(write_text_file(flags.svg, server::report_svg(flags.serve, report)));
  const nlohmann::json json = server::report_json(flags.serve, report);
  if (flags.json) {
    std::printf("%s\n", json.dump(2).c_str());
  } else if (report.completed > 0) {
    std::printf("%lld of %lld requests in %.2f s: %.1f tokens/s, %.2f requests/s\n",
                static_cast<long long>(report.completed),
                static_cast<long long>(flags.serve.requests), report.seconds,
                static_cast<double>(report.tokens) / report.seconds,
                static_cast<double>(report.completed) / report.seconds);
    std::printf("%-22s %10s %10s %10s %10s %10s\n", "milliseconds", "mean", "p50", "p90", "p99",
                "max");
    const auto row = [](const char* name, const server::Percentiles& p) {
      std::printf("%-22s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, p.mean * 1e3, p.p50 * 1e3,
                  p.p90 * 1e3, p.p99 * 1e3, p.largest * 1e3);
    };
    row("TTFT", report.ttft);
    row("ITL (between chunks)", report.itl);
    row("TPOT", report.tpot);
    row("whole request", report.e2e);
  }
  if (report.completed > 0) return ok_status();
  return {Code::kIoError, "bench serve", "no request was answered: " + json.at("errors").dump()};
}

namespace {

// Which kinds a flag is for; those not listed are for all.
const std::map<std::string, std::string>& kinds_of_flags() {
  static const std::string anywhere = "step, layer, step on cuda, layer on cuda";
  static const std::string paths = "step, speculation, step on cuda, layer on cuda";
  static const std::map<std::string, std::string> kinds = {
      {"--model", "speculation, " + anywhere},
      {"--contexts", anywhere},
      {"--rows", anywhere},
      {"--threads", "step, layer, speculation"},
      {"--prefill", "step"},
      {"--repeats", "speculation, " + anywhere},
      {"--timeline", "layer"},
      {"--draft", "speculation"},
      {"--guesses", "speculation"},
      {"--prompts", "speculation"},
      {"--max-tokens", "speculation"},
      {"--path", paths},
      {"--backend", "speculation, " + anywhere},
      {"--tensor-parallel-size", paths},
      {"--kv-cache-dtype", "speculation, " + anywhere},
      {"--index-cache-dtype", "speculation, " + anywhere},
      {"--dense-layers", "step on cuda"},
      {"--sparse-layers", "step on cuda, layer on cuda"},
      {"--router-dtype", "step on cuda, layer on cuda"},
      {"--query", "step on cuda, layer on cuda"},
      {"--every-rank", "step on cuda, layer on cuda"},
      {"--host", "serve"},
      {"--port", "serve"},
      {"--served-model-name", "serve"},
      {"--api-key", "serve"},
      {"--requests", "serve"},
      {"--concurrency", "serve"},
      {"--rate", "serve"},
      {"--prompt-tokens", "serve"},
      {"--output-tokens", "serve"},
      {"--vocab", "serve"},
      {"--timeout", "serve"},
      {"--seed", "serve"},
      {"--svg", "serve"}};
  return kinds;
}

// A flag of another kind would be ignored: it is refused instead.
Status check_kind(const BenchFlags& flags) {
  const bool device =
      flags.run.backend == "cuda" && (flags.what == "step" || flags.what == "layer");
  const std::string kind = flags.what + (device ? " on cuda" : "");
  for (const CLI::Option* option : flags.app->get_options()) {
    if (option->count() == 0) continue;
    const auto kinds = kinds_of_flags().find(option->get_name());
    if (kinds == kinds_of_flags().end()) continue;
    if ((", " + kinds->second + ",").find(", " + kind + ",") == std::string::npos)
      return {Code::kInvalidArgument, kinds->first,
              "is a flag of bench " + kinds->second + ", not of bench " + kind};
  }
  return ok_status();
}

// Random weights of full size instead of a model, made on the device.
Status run_on_device(const BenchFlags& flags) {
  if (!flags.model.empty())
    return {Code::kUnsupported, "--model",
            "is timed on cpu; with --backend cuda random weights of full size are made"};
  ML_RETURN_IF_ERROR(engine::check_backend(flags.run.backend));
  cuda::BenchOptions options;
  options.whole_step = flags.what == "step";
  ML_ASSIGN_OR_RETURN(options.contexts, numbers("--contexts", flags.contexts, 1, 1 << 20));
  ML_ASSIGN_OR_RETURN(options.rows, numbers("--rows", flags.rows, 1, mono::kMaxRows));
  options.repeats = flags.repeats;
  options.path = flags.run.path;
  if (flags.ranks_set->count() > 0)
    options.ranks = static_cast<int>(flags.run.tensor_parallel_size);
  options.every_rank = flags.every_rank;
  options.query = flags.query;
  options.f32_router = flags.router_dtype == "f32";
  options.dense_layers = options.whole_step ? flags.dense_layers : 0;
  options.sparse_layers = flags.sparse_layers;
  engine::CacheTypes types = flags.run.cache_types;
  if (types.kv == "auto") types.kv = "fp8";  // as the kernels for MiniMax-M3 take them
  ML_ASSIGN_OR_RETURN(const cpu::CacheOptions caches, engine::cache_options(types, "cuda"));
  options.kv = caches.kv;
  options.index = caches.index;
  return run_device_bench(options, flags.json);
}

Status run_bench(const BenchFlags& flags) {
  ML_RETURN_IF_ERROR(check_kind(flags));
  if (flags.what == "serve") return bench_serve(flags);
  ML_RETURN_IF_ERROR(flags.run.check());
  if (flags.what == "speculation") return bench_speculation(flags);
  if (flags.run.backend == "cuda") return run_on_device(flags);
  const std::int64_t most_rows = flags.what == "layer" ? mono::kMaxRows : 4096;
  engine::StepBenchOptions options;
  ML_ASSIGN_OR_RETURN(options.contexts, numbers("--contexts", flags.contexts, 1, 1 << 30));
  ML_ASSIGN_OR_RETURN(options.rows, numbers("--rows", flags.rows, 1, most_rows));
  ML_ASSIGN_OR_RETURN(options.threads, numbers("--threads", flags.thread_list, 0, 1024));
  ML_ASSIGN_OR_RETURN(options.prefills, numbers("--prefill", flags.prefills, 1, 1 << 20));
  options.repeats = flags.repeats;
  options.path = flags.run.path;
  options.ranks = static_cast<int>(flags.run.tensor_parallel_size);
  options.cache_types = flags.run.cache_types;
  ML_RETURN_IF_ERROR(engine::cache_options(options.cache_types, "cpu").status());
  ML_ASSIGN_OR_RETURN(const std::string name, model_or_embedded(flags.model));
  ML_ASSIGN_OR_RETURN(const auto model, engine::open_model(name));
  return flags.what == "layer" ? bench_layer(flags, options, *model)
                               : bench_step(flags, options, *model);
}

}  // namespace

void add_bench(Program& program) {
  auto flags = std::make_shared<BenchFlags>();
  Flags& f = program.flags;
  CLI::App& app = program.add("bench", "Time steps of a checkpoint against the read stream",
                              [flags] { return run_bench(*flags); });
  flags->app = &app;
  f.choice(app, "what", flags->what, {"step", "layer", "speculation", "serve"}, "What to time")
      ->required();
  f.folder(app, "--model", flags->model, "Folder or cached name; the embedded model if left out");
  f.text(app, "--contexts", flags->contexts, "Cached tokens of a decoded row, comma separated");
  f.text(app, "--rows", flags->rows, "Rows decoded together, comma separated");
  f.text(app, "--threads", flags->thread_list, "Thread counts; 0: one per physical core");
  f.text(app, "--prefill", flags->prefills, "Prompt lengths, comma separated");
  f.integer(app, "--repeats", flags->repeats, 1, 100000, "Timed steps; medians are reported");
  f.text(app, "--timeline", flags->timeline, "SVG file of one fused step, stages over workers");
  f.folder(app, "--draft", flags->draft,
           "Folder or cached name; the embedded model's own if left out");
  f.text(app, "--guesses", flags->guesses, "Guesses of a step, comma separated");
  f.file(app, "--prompts", flags->prompts, "A question a line, instead of built-in ones");
  f.integer(app, "--max-tokens", flags->max_tokens, 2, 1 << 20, "Tokens of an answer");
  server::ServeBenchOptions& s = flags->serve;
  s.model = "nano";
  f.text(app, "--host", s.host, "Where the server is");
  f.integer(app, "--port", s.port, 1, 65535, "Port of the server");
  f.text(app, "--served-model-name", s.model, "Name of the model there");
  f.text(app, "--api-key", s.api_key, "Key of the server");
  f.integer(app, "--requests", s.requests, 1, 1 << 24, "Requests in all");
  f.integer(app, "--concurrency", s.concurrency, 1, 4096, "Streams at once");
  f.real(app, "--rate", s.rate, 0, 1e6, false,
         "Requests a second, at random intervals; 0: each stream asks again when answered");
  f.integer(app, "--prompt-tokens", s.prompt_tokens, 1, 1 << 24, "Random ids of a prompt");
  f.integer(app, "--output-tokens", s.max_tokens, 1, 1 << 24, "Tokens of an answer");
  f.integer(app, "--vocab", s.vocab, 1, 1 << 24, "Random ids are below this");
  f.real(app, "--timeout", s.timeout_seconds, 0.001, 1e6, false,
         "Seconds after which a request that stands still has failed");
  f.seed(app, "--seed", s.seed, "Of prompts and intervals");
  f.text(app, "--svg", flags->svg, "Picture of the run");
  f.toggle(app, "--json", flags->json, "Print JSON");
  flags->run.add(f, app, {"auto", "native", "mono"}, /*threads_flag=*/false);
  flags->ranks_set = app.get_option("--tensor-parallel-size");
  f.integer(app, "--dense-layers", flags->dense_layers, 0, 60, "Dense layers of the random model");
  f.integer(app, "--sparse-layers", flags->sparse_layers, 1, 60,
            "Sparse layers of the random model");
  f.integer(app, "--query", flags->query, 1, 16, "Rows of a sequence, its last tokens");
  f.choice(app, "--router-dtype", flags->router_dtype, {"bf16", "f32"}, "Element type of routers");
  f.toggle(app, "--every-rank", flags->every_rank,
           "Every rank on a device of its own, not one for all");
  // Help lists them by what they are for.
  for (CLI::Option* option : app.get_options()) {
    const auto kinds = kinds_of_flags().find(option->get_name());
    if (kinds != kinds_of_flags().end()) option->group("Options of bench " + kinds->second);
  }
}

}  // namespace monolayer::cli

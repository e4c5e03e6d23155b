// `monolayer bench`: steps of a checkpoint against the machine's read stream.
#include <charconv>
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/text_io.h"
#include "cli/bench_device.h"
#include "cli/command.h"
#include "engine/embedded_model.h"
#include "engine/layer_bench.h"
#include "engine/memory_check.h"
#include "engine/native_run.h"
#include "engine/speculation_bench.h"
#include "engine/step_bench.h"
#include "server/serve_bench.h"

namespace monolayer::cli {
namespace {

// Questions of the kind the embedded model was trained on.
const char* const kQuestions[] = {
    "Tom has 12 apples. Anna gives Tom 7 more apples. How many apples does Tom have?",
    "What is 48 + 37?",
    "Maria has 25 coins and gives 9 coins to Ben. How many coins does Maria have?",
    "There are 6 boxes with 8 pens each. How many pens are there?",
    "Ben has 40 marbles. He shares them equally among 5 friends. How many does each friend get?",
    "Hello, who are you?",
    "A train has 14 cars. 5 cars are taken away and 8 are added. How many cars has it now?",
    "What is 91 - 46?"};

struct BenchFlags {
  server::ServeBenchOptions serve;
  std::string svg;
  std::string draft, guesses = "0,1,2,3,5,7", prompts;
  std::int64_t max_tokens = 128;
  std::string what, model, timeline, contexts = "128,1024", rows = "1", thread_list = "0",
                                     prefills = "512";
  std::int64_t repeats = 9;
  std::int64_t dense_layers = 3, sparse_layers = 57;
  bool json = false;
  RunFlags run;
  CLI::Option* ranks_set = nullptr;
};

// "1,4,16" to numbers within [low, high].
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

nlohmann::json to_json(const engine::StepResult& r) {
  return {{"kind", r.kind},
          {"context", r.context},
          {"rows", r.rows},
          {"threads", r.threads},
          {"kernel", r.kernel},
          {"median_seconds", r.seconds},
          {"tokens_per_second", r.tokens_per_second},
          {"bytes", r.bytes},
          {"bytes_per_second", r.bytes_per_second},
          {"read_stream_bytes_per_second", r.stream_bytes_per_second},
          {"share_of_read_stream", r.share()}};
}

void print_row(const engine::StepResult& r) {
  std::printf("%-8s %9lld %5lld %8d  %10.3f %11.1f %10s %9.2f %9.2f %8.1f\n", r.kind.c_str(),
              static_cast<long long>(r.context), static_cast<long long>(r.rows), r.threads,
              r.seconds * 1e3, r.tokens_per_second, engine::format_bytes(r.bytes).c_str(),
              r.bytes_per_second / 1e9, r.stream_bytes_per_second / 1e9, 100 * r.share());
  std::fflush(stdout);
}

nlohmann::json to_json(const engine::LayerResult& r) {
  return {{"context", r.context},
          {"rows", r.rows},
          {"threads", r.threads},
          {"bytes", r.bytes},
          {"native_seconds", r.native_seconds},
          {"mono_seconds", r.mono_seconds},
          {"native_bytes_per_second", r.native_rate()},
          {"mono_bytes_per_second", r.mono_rate()},
          {"read_stream_bytes_per_second", r.stream_bytes_per_second},
          {"wait_seconds_per_thread", r.wait_seconds},
          {"prepare_seconds", r.prepare_seconds}};
}

// All layers of a step, native and fused in turns.
Status run_layers(const BenchFlags& flags, const engine::StepBenchOptions& step,
                  const engine::OpenModel& model) {
  if (step.ranks > 1)
    return {Code::kUnsupported, "--tensor-parallel-size",
            "is " + std::to_string(step.ranks) + "; bench layer times one rank"};
  engine::LayerBenchOptions options;
  options.contexts = step.contexts;
  options.rows = step.rows;
  options.threads = step.threads;
  options.repeats = step.repeats;
  options.kv_cache_dtype = step.kv_cache_dtype;
  options.timeline = flags.timeline;
  nlohmann::json results = nlohmann::json::array();
  if (!flags.json)
    std::printf("%9s %5s %8s %10s %10s %8s %9s %9s %9s %8s %9s %11s\n", "context", "rows",
                "threads", "native ms", "mono ms", "ratio", "native", "mono", "stream", "share %",
                "waits %", "prepare us");
  ML_RETURN_IF_ERROR(engine::bench_layers(model, options, [&](const engine::LayerResult& r) {
    if (flags.json) {
      results.push_back(to_json(r));
      return;
    }
    std::printf("%9lld %5lld %8d %10.3f %10.3f %8.3f %9.2f %9.2f %9.2f %8.1f %9.1f %11.2f\n",
                static_cast<long long>(r.context), static_cast<long long>(r.rows), r.threads,
                r.native_seconds * 1e3, r.mono_seconds * 1e3, r.mono_seconds / r.native_seconds,
                r.native_rate() / 1e9, r.mono_rate() / 1e9, r.stream_bytes_per_second / 1e9,
                100 * r.mono_rate() / r.stream_bytes_per_second,
                100 * r.wait_seconds / r.mono_seconds, r.prepare_seconds * 1e6);
    std::fflush(stdout);
  }));
  if (flags.json) {
    const nlohmann::json report = {{"model", model.folder},
                                   {"file_bytes", model.checkpoint.file_bytes()},
                                   {"backend", "cpu"},
                                   {"repeats", flags.repeats},
                                   {"results", results}};
    std::printf("%s\n", report.dump(2).c_str());
  }
  return ok_status();
}

Status run_speculation(const BenchFlags& flags) {
  engine::SpeculationBenchOptions options;
  ML_ASSIGN_OR_RETURN(options.guesses, numbers("--guesses", flags.guesses, 0, m3::kMostDrafts));
  ML_ASSIGN_OR_RETURN(const auto threads, numbers("--threads", flags.thread_list, 0, 1024));
  options.threads = static_cast<int>(threads.front());
  options.max_tokens = flags.max_tokens;
  options.repeats = flags.repeats;
  options.path = flags.run.path;
  options.ranks = static_cast<int>(flags.run.tensor_parallel_size);
  options.kv_cache_dtype = flags.run.kv_cache_dtype;
  options.draft = flags.draft;
  if (options.draft.empty()) {
    if (!flags.model.empty())
      return {Code::kInvalidArgument, "--draft",
              "is needed for a model other than the embedded one"};
    ML_ASSIGN_OR_RETURN(options.draft, engine::embedded_draft_folder());
  }
  if (flags.prompts.empty()) {
    options.prompts.assign(std::begin(kQuestions), std::end(kQuestions));
  } else {
    ML_ASSIGN_OR_RETURN(const std::string text,
                        read_text_file(flags.prompts, std::size_t{64} << 20));
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      if (end > at) options.prompts.push_back(text.substr(at, end - at));
      at = end + 1;
    }
  }
  ML_ASSIGN_OR_RETURN(const std::string name, model_or_embedded(flags.model));
  ML_ASSIGN_OR_RETURN(const auto model, engine::open_model(name));
  ML_ASSIGN_OR_RETURN(const auto results, engine::bench_speculation(*model, options));
  nlohmann::json list = nlohmann::json::array();
  if (!flags.json)
    std::printf("%7s %9s %11s %11s %11s  %s\n", "guesses", "tokens", "tokens/s", "bytes/token",
                "tokens/step", "accepted by position");
  for (const engine::SpeculationBenchResult& r : results) {
    nlohmann::json accepted = nlohmann::json::array();
    std::string shares;
    for (std::int64_t i = 0; i < r.guesses; ++i) {
      const double share = r.accepted_at[static_cast<std::size_t>(i)];
      accepted.push_back(share);
      char text[16];
      std::snprintf(text, sizeof text, " %.3f", share);
      shares += text;
    }
    list.push_back({{"guesses", r.guesses},
                    {"tokens", r.tokens},
                    {"steps", r.steps},
                    {"tokens_per_second", r.tokens_per_second},
                    {"bytes_per_token", r.bytes_per_token},
                    {"tokens_per_step", r.tokens_per_step},
                    {"accepted_by_position", accepted}});
    if (!flags.json)
      std::printf("%7lld %9lld %11.1f %11s %11.3f %s\n", static_cast<long long>(r.guesses),
                  static_cast<long long>(r.tokens), r.tokens_per_second,
                  engine::format_bytes(static_cast<std::int64_t>(r.bytes_per_token)).c_str(),
                  r.tokens_per_step, shares.c_str());
  }
  if (flags.json) {
    const nlohmann::json report = {{"model", model->folder},
                                   {"draft", options.draft},
                                   {"path", flags.run.path},
                                   {"backend", "cpu"},
                                   {"prompts", options.prompts.size()},
                                   {"max_tokens", options.max_tokens},
                                   {"repeats", flags.repeats},
                                   {"results", list}};
    std::printf("%s\n", report.dump(2).c_str());
  }
  return ok_status();
}

Status run_serve_bench(const BenchFlags& flags) {
  ML_ASSIGN_OR_RETURN(const server::ServeBenchReport report, server::bench_serve(flags.serve));
  if (!flags.svg.empty())
    ML_RETURN_IF_ERROR(write_text_file(flags.svg, server::report_svg(flags.serve, report)));
  const nlohmann::json json = server::report_json(flags.serve, report);
  if (flags.json) {
    std::printf("%s\n", json.dump(2).c_str());
  } else {
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

// Random weights of full size instead of a model, made on the device.
Status run_on_device(const BenchFlags& flags) {
  if (flags.what == "speculation")
    return {Code::kUnsupported, "--backend", "is cuda; bench speculation runs on cpu"};
  if (!flags.model.empty())
    return {Code::kUnsupported, "--model",
            "is timed on cpu; with --backend cuda random weights of full size are made"};
  ML_RETURN_IF_ERROR(engine::check_backend(flags.run.backend));
  cuda::BenchOptions options;
  options.whole_step = flags.what == "step";
  ML_ASSIGN_OR_RETURN(options.contexts, numbers("--contexts", flags.contexts, 1, 1 << 20));
  ML_ASSIGN_OR_RETURN(options.rows, numbers("--rows", flags.rows, 1, 16));
  options.repeats = flags.repeats;
  options.path = flags.run.path;
  if (flags.ranks_set->count() > 0)
    options.ranks = static_cast<int>(flags.run.tensor_parallel_size);
  options.dense_layers = options.whole_step ? flags.dense_layers : 0;
  options.sparse_layers = flags.sparse_layers;
  return run_device_bench(options, flags.json);
}

Status run_bench(const BenchFlags& flags) {
  if (flags.what == "serve") return run_serve_bench(flags);
  ML_RETURN_IF_ERROR(flags.run.check());
  if (flags.run.backend == "cuda") return run_on_device(flags);
  if (flags.what == "speculation") return run_speculation(flags);
  engine::StepBenchOptions options;
  ML_ASSIGN_OR_RETURN(options.contexts, numbers("--contexts", flags.contexts, 1, 1 << 30));
  ML_ASSIGN_OR_RETURN(options.rows, numbers("--rows", flags.rows, 1, 4096));
  ML_ASSIGN_OR_RETURN(options.threads, numbers("--threads", flags.thread_list, 0, 1024));
  ML_ASSIGN_OR_RETURN(options.prefills, numbers("--prefill", flags.prefills, 1, 1 << 20));
  options.repeats = flags.repeats;
  options.path = flags.run.path;
  options.ranks = static_cast<int>(flags.run.tensor_parallel_size);
  options.kv_cache_dtype = flags.run.kv_cache_dtype;
  ML_RETURN_IF_ERROR(engine::cache_options(options.kv_cache_dtype).status());
  ML_ASSIGN_OR_RETURN(const std::string name, model_or_embedded(flags.model));
  ML_ASSIGN_OR_RETURN(const auto model, engine::open_model(name));
  if (flags.what == "layer") return run_layers(flags, options, *model);

  nlohmann::json results = nlohmann::json::array();
  if (!flags.json)
    std::printf("%-8s %9s %5s %8s  %10s %11s %10s %9s %9s %8s\n", "kind", "context", "rows",
                "threads", "median ms", "tokens/s", "bytes", "GB/s", "stream", "share %");
  ML_RETURN_IF_ERROR(engine::bench_steps(*model, options, [&](const engine::StepResult& result) {
    if (flags.json) {
      results.push_back(to_json(result));
    } else {
      print_row(result);
    }
  }));
  if (flags.json) {
    const nlohmann::json report = {
        {"model", model->folder},   {"file_bytes", model->checkpoint.file_bytes()},
        {"path", flags.run.path},   {"tensor_parallel_size", flags.run.tensor_parallel_size},
        {"backend", "cpu"},         {"kv_cache_dtype", flags.run.kv_cache_dtype},
        {"repeats", flags.repeats}, {"results", results}};
    std::printf("%s\n", report.dump(2).c_str());
  }
  return ok_status();
}

}  // namespace

void add_bench(Program& program) {
  auto flags = std::make_shared<BenchFlags>();
  Flags& f = program.flags;
  CLI::App& app = program.add("bench", "Time steps of a checkpoint against the read stream",
                              [flags] { return run_bench(*flags); });
  f.choice(app, "what", flags->what, {"step", "layer", "speculation", "serve"}, "What to time")
      ->required();
  f.folder(app, "--model", flags->model, "Folder or cached name; the embedded model if left out");
  f.text(app, "--contexts", flags->contexts, "Cached tokens of a decoded row, comma separated");
  f.text(app, "--rows", flags->rows, "Rows decoded together, comma separated");
  f.text(app, "--threads", flags->thread_list, "Thread counts; 0: one per physical core");
  f.text(app, "--prefill", flags->prefills, "Prompt lengths, comma separated");
  f.integer(app, "--repeats", flags->repeats, 1, 100000, "Timed steps; medians are reported");
  f.text(app, "--timeline", flags->timeline,
         "layer: SVG file of one fused step, stages over workers");
  f.folder(app, "--draft", flags->draft,
           "speculation: folder or cached name; the embedded model's own if left out");
  f.text(app, "--guesses", flags->guesses, "speculation: guesses of a step, comma separated");
  f.file(app, "--prompts", flags->prompts,
         "speculation: a question a line, instead of built-in ones");
  f.integer(app, "--max-tokens", flags->max_tokens, 2, 1 << 20, "speculation: of an answer");
  server::ServeBenchOptions& s = flags->serve;
  s.model = "nano";
  f.text(app, "--host", s.host, "serve: where the server is");
  f.integer(app, "--port", s.port, 1, 65535, "serve: its port");
  f.text(app, "--served-model-name", s.model, "serve: the name it knows");
  f.text(app, "--api-key", s.api_key, "serve: what it wants to see");
  f.integer(app, "--requests", s.requests, 1, 1 << 24, "serve: how many");
  f.integer(app, "--concurrency", s.concurrency, 1, 4096, "serve: streams at once");
  f.real(app, "--rate", s.rate, 0, 1e6, false,
         "serve: requests a second, at random intervals; 0: each stream asks again when answered");
  f.integer(app, "--prompt-tokens", s.prompt_tokens, 1, 1 << 24, "serve: random ids of a prompt");
  f.integer(app, "--output-tokens", s.max_tokens, 1, 1 << 24, "serve: tokens of an answer");
  f.integer(app, "--vocab", s.vocab, 1, 1 << 24, "serve: random ids are below it");
  f.real(app, "--timeout", s.timeout_seconds, 0.001, 1e6, false,
         "serve: seconds after which a request that stands still has failed");
  f.seed(app, "--seed", s.seed, "serve: of prompts and intervals");
  f.text(app, "--svg", flags->svg, "serve: picture of the run");
  f.toggle(app, "--json", flags->json, "Print JSON");
  flags->run.add(f, app, {"auto", "native", "mono"}, /*threads_flag=*/false);
  flags->ranks_set = app.get_option("--tensor-parallel-size");
  f.integer(app, "--dense-layers", flags->dense_layers, 0, 60,
            "step on cuda: dense layers of the random model");
  f.integer(app, "--sparse-layers", flags->sparse_layers, 1, 60,
            "step and layer on cuda: its sparse layers");
}

}  // namespace monolayer::cli

// `monolayer generate`: text from a prompt or chat messages, streamed.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/text_io.h"
#include "cli/command.h"
#include "cli/draft_flags.h"
#include "cli/generate_output.h"
#include "cli/progress.h"
#include "cli/speculation_output.h"
#include "engine/draft_model.h"
#include "engine/generator.h"
#include "engine/memory_check.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"
#include "engine/prompt.h"
#include "engine/run_report.h"
#include "engine/speculative_generate.h"
#include "text/chat_check.h"

namespace monolayer::cli {
namespace {

struct GenerateFlags {
  std::string model, prompt, prompt_file, messages_file, thinking;
  DraftFlags draft;
  std::int64_t max_tokens = 512, max_model_len = 0, top_k = 0, prefill_chunk = 512;
  double temperature = 0, top_p = 1;
  std::uint64_t seed = 0;
  bool raw = false, special = false, json = false, quiet = false, verbose = false;
  RunFlags run;
  // Whether the flag was given: defaults come from the model's generation_config.json.
  CLI::Option *prompt_set = nullptr, *temperature_set = nullptr, *top_p_set = nullptr,
              *top_k_set = nullptr, *seed_set = nullptr;
};

Result<engine::PromptRequest> prompt_request(const GenerateFlags& flags) {
  const int sources = (flags.prompt_set->count() > 0 ? 1 : 0) +
                      (flags.prompt_file.empty() ? 0 : 1) + (flags.messages_file.empty() ? 0 : 1);
  if (sources != 1)
    return Status(Code::kInvalidArgument, "generate",
                  "needs exactly one of --prompt, --prompt-file and --messages");
  engine::PromptRequest request;
  request.raw = flags.raw;
  request.allow_special = flags.special;
  if (flags.special && !flags.raw)
    return Status(Code::kInvalidArgument, "--special-tokens", "needs --raw");
  if (!flags.thinking.empty()) request.thinking = flags.thinking;
  if (flags.raw && request.thinking)
    return Status(Code::kInvalidArgument, "--thinking", "is the chat template's; not with --raw");
  request.text = flags.prompt;
  request.subject = "--prompt";
  if (!flags.prompt_file.empty()) {
    request.subject = flags.prompt_file;
    ML_ASSIGN_OR_RETURN(request.text, read_text_file(flags.prompt_file, std::size_t{64} << 20));
  }
  if (!flags.messages_file.empty()) {
    if (flags.raw)
      return Status(Code::kInvalidArgument, "--raw",
                    "completes text; it does not go with --messages");
    request.subject = flags.messages_file;
    ML_ASSIGN_OR_RETURN(const std::string text,
                        read_text_file(flags.messages_file, std::size_t{64} << 20));
    ML_ASSIGN_OR_RETURN(request.chat, read_chat(text, flags.messages_file));
  } else if (request.text.empty()) {
    return Status(Code::kInvalidArgument, request.subject, "is empty");
  }
  return request;
}

Result<engine::GenerateOptions> generate_options(const GenerateFlags& flags,
                                                 const engine::GenerationDefaults& defaults) {
  engine::GenerateOptions options;
  options.sampling.temperature =
      flags.temperature_set->count() > 0 ? flags.temperature : defaults.temperature;
  options.sampling.top_p = flags.top_p_set->count() > 0 ? flags.top_p : defaults.top_p;
  options.sampling.top_k = flags.top_k_set->count() > 0 ? flags.top_k : defaults.top_k;
  options.sampling.seed = flags.seed;
  if (flags.seed_set->count() == 0 && options.sampling.temperature > 0)
    options.sampling.seed = std::random_device{}();
  options.max_tokens = flags.max_tokens;
  options.prefill_chunk = flags.prefill_chunk;
  options.stop_ids = defaults.eos_token_ids;
  ML_RETURN_IF_ERROR(engine::check_sampling(options.sampling));
  return options;
}

// The context the caches are made for: what was asked for with --max-model-len, else what this
// prompt can need.
Result<std::int64_t> context_tokens(const GenerateFlags& flags, const m3::ModelConfig& config,
                                    std::int64_t prompt_tokens) {
  if (flags.max_model_len > config.max_positions)
    return Status(Code::kInvalidArgument, "--max-model-len",
                  "is " + std::to_string(flags.max_model_len) + ", the model takes at most " +
                      std::to_string(config.max_positions));
  const std::int64_t limit = flags.max_model_len > 0 ? flags.max_model_len : config.max_positions;
  if (prompt_tokens >= limit)
    return Status(Code::kInvalidArgument, "prompt",
                  "has " + std::to_string(prompt_tokens) + " tokens; the limit of " +
                      std::to_string(limit) + " tokens of context leaves room for a prompt of " +
                      std::to_string(limit - 1));
  if (flags.max_model_len > 0) return limit;
  return prompt_tokens + std::min(flags.max_tokens, limit - prompt_tokens);
}

Status run_generate(const GenerateFlags& flags) {
  ML_RETURN_IF_ERROR(flags.run.check());
  ML_RETURN_IF_ERROR(engine::cache_options(flags.run.cache_types, flags.run.backend).status());
  ML_ASSIGN_OR_RETURN(const engine::PromptRequest request, prompt_request(flags));
  ML_ASSIGN_OR_RETURN(const std::string name, model_or_embedded(flags.model));
  ML_ASSIGN_OR_RETURN(auto model, engine::open_model(name));
  ML_ASSIGN_OR_RETURN(const auto defaults,
                      engine::generation_defaults(model->folder, model->config));
  ML_ASSIGN_OR_RETURN(engine::GenerateOptions options, generate_options(flags, defaults));
  ML_ASSIGN_OR_RETURN(const engine::TextModel text, engine::TextModel::load(model->folder));
  ML_ASSIGN_OR_RETURN(const engine::Prompt prompt, text.build(request, model->config.vocab_size));
  const auto prompt_tokens = static_cast<std::int64_t>(prompt.ids.size());
  ML_ASSIGN_OR_RETURN(const std::int64_t context,
                      context_tokens(flags, model->config, prompt_tokens));
  options.max_context = context;

  engine::NativeRunOptions run_options;
  run_options.backend = flags.run.backend;
  run_options.threads = static_cast<int>(flags.run.threads);
  run_options.cache_types = flags.run.cache_types;
  run_options.context_tokens = context;
  run_options.path = flags.run.path;
  run_options.ranks = static_cast<int>(flags.run.tensor_parallel_size);
  run_options.context_flag =
      flags.max_model_len > 0 ? "--max-model-len" : "prompt and --max-tokens";
  ML_ASSIGN_OR_RETURN(const auto draft, flags.draft.open(flags.model, model->config));
  if (draft != nullptr) {
    run_options.draft_bytes = static_cast<std::int64_t>(draft->checkpoint.file_bytes());
    run_options.draft_block_bytes = draft->host_block_bytes(model->config, run_options.backend);
  }
  Progress progress("loading", flags.quiet);
  run_options.progress = [&](const ReadProgress& p) {
    progress.update(p.bytes_done, p.bytes_total);
  };
  ML_ASSIGN_OR_RETURN(auto run, engine::NativeRun::load(*model, run_options));
  std::unique_ptr<engine::DraftRun> draft_run;
  if (draft != nullptr) {
    engine::SpeculationOptions speculation;
    speculation.tokens = flags.draft.guesses;
    ML_ASSIGN_OR_RETURN(draft_run, engine::DraftRun::load(*draft, *model, *run, speculation));
  }
  progress.finish();
  if (flags.verbose) {
    print_configuration(
        {{"model", model->folder},
         {"path", flags.run.path},
         {"tensor_parallel_size", flags.run.tensor_parallel_size},
         {"backend", flags.run.backend},
         {"kernel", std::string(run->tiles().name)},
         {"threads", run->team().size()},
         {"kv_cache_dtype", engine::cache_type_name(run->pool().options().kv)},
         {"index_cache_dtype", engine::cache_type_name(run->pool().options().index)},
         {"kernel_family", run->kernel_family()},
         {"context_tokens", context},
         {"prompt_tokens", prompt_tokens},
         {"max_tokens", options.max_tokens},
         {"temperature", options.sampling.temperature},
         {"top_p", options.sampling.top_p},
         {"top_k", options.sampling.top_k},
         {"seed", options.sampling.seed},
         {"draft_model", draft == nullptr ? "" : draft->folder},
         {"num_speculative_tokens", draft_run == nullptr ? 0 : draft_run->speculator().tokens()},
         {"thinking", flags.thinking.empty() ? "template" : flags.thinking},
         {"stop_ids", options.stop_ids}});
    std::fprintf(stderr, "threads: %s\n", std::string(run->team().describe()).c_str());
  }

  ReplyPrinter printer(text, prompt, flags.json);
  options.still_valid = [&model = model, &draft = draft] {
    ML_RETURN_IF_ERROR(model->checkpoint.verify_unchanged());
    return draft == nullptr ? ok_status() : draft->checkpoint.verify_unchanged();
  };
  const auto show = [&](std::int32_t id) { return printer.token(id); };
  engine::Generator generator(model->config, run->native(), run->pool());
  ML_ASSIGN_OR_RETURN(const engine::GenerateReport report,
                      draft_run == nullptr
                          ? generator.generate(prompt.ids, options, show)
                          : engine::generate_speculating(*model, text.tokenizer(), *run, *draft_run,
                                                         prompt.ids, options, show));
  printer.finish();
  if (printer.write_error() != 0)  // nobody reads a report of what nobody got
    return {Code::kIoError, "standard output", std::strerror(printer.write_error())};
  engine::SpeculationStats speculation;
  if (draft_run != nullptr) speculation = draft_run->speculator().stats();
  draft_run.reset();  // borrows what the report takes
  if (flags.quiet && !flags.json) return ok_status();
  engine::RunReport summary = engine::run_report(std::move(model), std::move(run), report);
  summary.requested_path = flags.run.path;
  summary.backend = flags.run.backend;
  summary.ranks = static_cast<int>(flags.run.tensor_parallel_size);
  if (flags.json) {
    nlohmann::json json = engine::run_report_json(summary);
    printer.add_to(json);
    json["seed"] = options.sampling.seed;
    json["temperature"] = options.sampling.temperature;
    if (speculation.steps > 0) json["speculation"] = speculation_json(speculation, draft->folder);
    std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return ok_status();
  }
  std::fflush(stdout);
  std::fputs(engine::run_report_text(summary).c_str(), stderr);
  if (speculation.steps > 0)
    std::fprintf(stderr, "speculation: %.3f tokens a step\n", tokens_a_step(speculation));
  return ok_status();
}

}  // namespace

void add_generate(Program& program) {
  auto flags = std::make_shared<GenerateFlags>();
  Flags& f = program.flags;
  CLI::App& app = program.add("generate", "Answer a prompt or chat messages",
                              [flags] { return run_generate(*flags); });
  f.folder(app, "--model", flags->model, "Folder or cached name; the embedded model if left out");
  flags->prompt_set = f.text(app, "--prompt", flags->prompt, "What the user says");
  f.file(app, "--prompt-file", flags->prompt_file, "File with what the user says");
  f.file(app, "--messages", flags->messages_file,
         "JSON list of chat messages, or an object with messages and tools");
  f.toggle(app, "--raw", flags->raw, "Complete the prompt as it is, without the chat template");
  f.toggle(app, "--special-tokens", flags->special,
           "With --raw: control tokens in the prompt are tokens, not text");
  f.integer(app, "--max-tokens", flags->max_tokens, 1, std::int64_t{1} << 30,
            "Most tokens to generate");
  flags->temperature_set = f.real(app, "--temperature", flags->temperature, 0, 100, false,
                                  "0 always takes the likeliest token");
  flags->top_p_set = f.real(app, "--top-p", flags->top_p, 0, 1, true, "Share of probability kept");
  flags->top_k_set = f.integer(app, "--top-k", flags->top_k, 0, std::int64_t{1} << 30,
                               "Likeliest tokens kept; 0: all");
  flags->seed_set = f.seed(app, "--seed", flags->seed, "Same seed, same text; random if left out");
  f.choice(app, "--thinking", flags->thinking, {"enabled", "disabled", "adaptive"},
           "Whether the model thinks first");
  f.integer(app, "--max-model-len", flags->max_model_len, 1, std::int64_t{1} << 40,
            "Context the caches are made for; what the prompt needs if left out");
  flags->draft.add(f, app, 1);
  f.integer(app, "--prefill-chunk", flags->prefill_chunk, 1, std::int64_t{1} << 20,
            "Prompt tokens of one step; changes speed, never the text");
  flags->run.add(f, app, {"auto", "native", "mono"});
  f.toggle(app, "--json", flags->json, "One JSON object at the end instead of streamed text");
  f.toggle(app, "--quiet", flags->quiet, "No progress, no closing report");
  f.toggle(app, "--verbose", flags->verbose, "Print the effective configuration");
}

}  // namespace monolayer::cli

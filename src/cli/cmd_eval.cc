// `monolayer eval`: how often a model is right on questions with known answers.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/draft_flags.h"
#include "cli/speculation_output.h"
#include "engine/draft_model.h"
#include "engine/eval.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"

namespace monolayer::cli {
namespace {

struct EvalFlags {
  std::string model, data;
  DraftFlags draft;
  std::int64_t limit = 0, misses = 20;
  engine::EvalOptions options;
  bool json = false, quiet = false;
  RunFlags run;
};

nlohmann::json to_json(const engine::EvalTask& t) {
  nlohmann::json out = {{"task", t.name}, {"failed", t.failed}};
  if (t.asked > 0) {
    out.update({{"asked", t.asked},
                {"exact", t.exact},
                {"wrong", t.wrong},
                {"truncated", t.truncated},
                {"parse_failures", t.unparsed},
                {"exact_share", static_cast<double>(t.exact) / static_cast<double>(t.asked)},
                {"wilson_95", {t.exact_interval.low, t.exact_interval.high}},
                {"prompt_tokens", t.prompt_tokens},
                {"longest_prompt", t.longest_prompt},
                {"reply_tokens", t.reply_tokens}});
  }
  if (t.texts > 0) {
    out.update({{"texts", t.texts},
                {"predicted_tokens", t.predicted_tokens},
                {"perplexity", t.perplexity}});
    if (t.texts > 1) out["perplexity_95"] = {t.perplexity_interval.low, t.perplexity_interval.high};
  }
  return out;
}

void print(const engine::EvalTask& t) {
  if (t.asked > 0)
    std::printf("%-28s %6lld  %6.4f  [%.4f, %.4f] %6lld %9lld %8lld %7lld\n", t.name.c_str(),
                static_cast<long long>(t.asked),
                static_cast<double>(t.exact) / static_cast<double>(t.asked), t.exact_interval.low,
                t.exact_interval.high, static_cast<long long>(t.wrong),
                static_cast<long long>(t.truncated), static_cast<long long>(t.unparsed),
                static_cast<long long>(t.failed));
  if (t.texts > 0)
    std::printf("%-28s %6lld  perplexity %.4f  [%.4f, %.4f] over %lld tokens\n", t.name.c_str(),
                static_cast<long long>(t.texts), t.perplexity, t.perplexity_interval.low,
                t.perplexity_interval.high, static_cast<long long>(t.predicted_tokens));
}

Status run_eval(const EvalFlags& flags) {
  ML_RETURN_IF_ERROR(flags.run.check());
  ML_RETURN_IF_ERROR(engine::cache_options(flags.run.cache_types, flags.run.backend).status());
  ML_ASSIGN_OR_RETURN(const std::string name, model_or_embedded(flags.model));
  ML_ASSIGN_OR_RETURN(const auto model, engine::open_model(name));
  ML_ASSIGN_OR_RETURN(const auto defaults,
                      engine::generation_defaults(model->folder, model->config));
  ML_ASSIGN_OR_RETURN(const engine::TextModel text, engine::TextModel::load(model->folder));
  ML_ASSIGN_OR_RETURN(const auto items,
                      engine::read_eval_set(flags.data, text, model->config, flags.limit));

  engine::NativeRunOptions run_options;
  run_options.backend = flags.run.backend;
  run_options.threads = static_cast<int>(flags.run.threads);
  run_options.cache_types = flags.run.cache_types;
  run_options.context_tokens =
      std::min(engine::eval_pool_tokens(items, flags.options.rows), model->config.max_positions);
  run_options.context_flag = "--rows sequences of --data";
  run_options.path = flags.run.path;
  run_options.ranks = static_cast<int>(flags.run.tensor_parallel_size);
  ML_ASSIGN_OR_RETURN(const auto draft, flags.draft.open(flags.model, model->config));
  if (draft != nullptr) {
    run_options.draft_bytes = static_cast<std::int64_t>(draft->checkpoint.file_bytes());
    run_options.draft_block_bytes = draft->host_block_bytes(model->config, run_options.backend);
  }
  ML_ASSIGN_OR_RETURN(auto run, engine::NativeRun::load(*model, run_options));
  std::unique_ptr<engine::DraftRun> draft_run;
  if (draft != nullptr) {
    engine::SpeculationOptions speculation;
    speculation.tokens = flags.draft.guesses;
    ML_ASSIGN_OR_RETURN(draft_run, engine::DraftRun::load(*draft, *model, *run, speculation));
  }
  engine::NativeModel steps(model->config, run->native(), run->pool(), [&] {
    ML_RETURN_IF_ERROR(model->checkpoint.verify_unchanged());
    return draft == nullptr ? ok_status() : draft->checkpoint.verify_unchanged();
  });

  engine::EvalOptions options = flags.options;
  options.eos_ids = defaults.eos_token_ids;
  options.misses = flags.misses;
  options.team = &run->team();
  if (draft_run != nullptr) options.speculator = &draft_run->speculator();
  const bool show = !flags.quiet;
  std::uint64_t shown = 0;
  options.progress = [&shown, show](std::uint64_t done, std::uint64_t total) {
    if (!show || (done < shown + 50 && done != total) || done == shown) return;
    shown = done;
    std::fprintf(stderr, "answered %llu of %llu\n", static_cast<unsigned long long>(done),
                 static_cast<unsigned long long>(total));
  };
  ML_ASSIGN_OR_RETURN(const engine::EvalReport report,
                      engine::run_eval(steps, text.tokenizer(), items, options));

  if (!flags.json) {
    std::printf("%-28s %6s  %6s  %-16s %6s %9s %8s %7s\n", "task", "asked", "exact",
                "95 % (Wilson)", "wrong", "truncated", "unparsed", "failed");
    for (const engine::EvalTask& task : report.tasks) print(task);
    for (const engine::EvalMiss& miss : report.misses)
      std::printf("miss, line %lld: expected %s\n  got %s\n", static_cast<long long>(miss.line),
                  miss.answer.c_str(), miss.reply.c_str());
    if (report.speculation.steps > 0)
      std::printf("speculation: %.3f tokens a step, %lld steps of single sequences\n",
                  tokens_a_step(report.speculation),
                  static_cast<long long>(report.speculation.steps));
    std::printf("%lld steps, %.1f s\n", static_cast<long long>(report.steps), report.seconds);
    return ok_status();
  }
  nlohmann::json tasks = nlohmann::json::array(), misses = nlohmann::json::array();
  for (const engine::EvalTask& task : report.tasks) tasks.push_back(to_json(task));
  for (const engine::EvalMiss& miss : report.misses)
    misses.push_back(
        {{"task", miss.task}, {"line", miss.line}, {"answer", miss.answer}, {"reply", miss.reply}});
  nlohmann::json out = {{"model", model->folder},
                        {"data", flags.data},
                        {"path", flags.run.path},
                        {"tensor_parallel_size", flags.run.tensor_parallel_size},
                        {"backend", flags.run.backend},
                        {"kernel", std::string(run->tiles().name)},
                        {"threads", run->team().size()},
                        {"kv_cache_dtype", engine::cache_type_name(run->pool().options().kv)},
                        {"index_cache_dtype", engine::cache_type_name(run->pool().options().index)},
                        {"kernel_family", run->kernel_family()},
                        {"rows", flags.options.rows},
                        {"limit", flags.limit},
                        {"steps", report.steps},
                        {"seconds", report.seconds},
                        {"tasks", tasks},
                        {"misses", misses}};
  if (report.speculation.steps > 0)
    out["speculation"] = speculation_json(report.speculation, draft->folder);
  std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  return ok_status();
}

}  // namespace

void add_eval(Program& program) {
  auto flags = std::make_shared<EvalFlags>();
  Flags& f = program.flags;
  CLI::App& app = program.add("eval", "Score a model on questions with known answers",
                              [flags] { return run_eval(*flags); });
  f.folder(app, "--model", flags->model, "Folder or cached name; the embedded model if left out");
  f.file(app, "--data", flags->data, "JSONL file of questions and texts")->required();
  flags->draft.add(f, app, 3);
  f.integer(app, "--limit", flags->limit, 0, std::int64_t{1} << 40,
            "Lines of each task; 0: all of them");
  f.integer(app, "--rows", flags->options.rows, 1, 4096, "Sequences answered at once");
  f.integer(app, "--max-num-batched-tokens", flags->options.step_tokens, 1, std::int64_t{1} << 30,
            "Rows of a step");
  f.integer(app, "--misses", flags->misses, 0, 1 << 20, "Wrong replies shown, at most");
  f.toggle(app, "--json", flags->json, "Print JSON");
  f.toggle(app, "--quiet", flags->quiet, "No progress");
  flags->run.add(f, app, {"auto", "native", "mono"});
}

}  // namespace monolayer::cli

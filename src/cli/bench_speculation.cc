// `monolayer bench speculation`.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include <nlohmann/json.hpp>

#include "checkpoint/text_io.h"
#include "cli/bench_flags.h"
#include "engine/embedded_model.h"
#include "engine/memory_check.h"
#include "engine/native_run.h"
#include "engine/speculation_bench.h"
#include "m3/draft.h"

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

}  // namespace

Status bench_speculation(const BenchFlags& flags) {
  engine::SpeculationBenchOptions options;
  ML_ASSIGN_OR_RETURN(options.guesses, numbers("--guesses", flags.guesses, 0, m3::kMostDrafts));
  ML_ASSIGN_OR_RETURN(const auto threads, numbers("--threads", flags.thread_list, 0, 1024));
  if (threads.size() > 1)
    return {Code::kInvalidArgument, "--threads", "is a list; bench speculation takes one count"};
  options.threads = static_cast<int>(threads.front());
  options.max_tokens = flags.max_tokens;
  options.repeats = flags.repeats;
  options.backend = flags.run.backend;
  ML_RETURN_IF_ERROR(engine::check_backend(options.backend));
  options.path = flags.run.path;
  options.ranks = static_cast<int>(flags.run.tensor_parallel_size);
  options.cache_types = flags.run.cache_types;
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
  const bool on_device = options.backend == "cuda";  // counts no traffic
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
    list.push_back(
        {{"guesses", r.guesses},
         {"tokens", r.tokens},
         {"steps", r.steps},
         {"tokens_per_second", r.tokens_per_second},
         {"bytes_per_token", on_device ? nlohmann::json() : nlohmann::json(r.bytes_per_token)},
         {"tokens_per_step", r.tokens_per_step},
         {"accepted_by_position", accepted}});
    if (!flags.json)
      std::printf("%7lld %9lld %11.1f %11s %11.3f %s\n", static_cast<long long>(r.guesses),
                  static_cast<long long>(r.tokens), r.tokens_per_second,
                  on_device
                      ? "-"
                      : engine::format_bytes(static_cast<std::int64_t>(r.bytes_per_token)).c_str(),
                  r.tokens_per_step, shares.c_str());
  }
  if (flags.json) {
    const nlohmann::json report = {{"model", model->folder},
                                   {"draft", options.draft},
                                   {"path", flags.run.path},
                                   {"backend", flags.run.backend},
                                   {"prompts", options.prompts.size()},
                                   {"max_tokens", options.max_tokens},
                                   {"repeats", flags.repeats},
                                   {"results", list}};
    std::printf("%s\n", report.dump(2).c_str());
  }
  return ok_status();
}

}  // namespace monolayer::cli

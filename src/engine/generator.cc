#include "engine/generator.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace monolayer::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Status Generator::check(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                        std::int64_t limit) const {
  ML_RETURN_IF_ERROR(check_sampling(options.sampling));
  if (prompt.empty()) return {Code::kInvalidArgument, "prompt", "is empty"};
  if (options.max_tokens < 1) return {Code::kInvalidArgument, "max_tokens", "must be at least 1"};
  if (options.prefill_chunk < 1)
    return {Code::kInvalidArgument, "prefill_chunk", "must be at least 1"};
  const auto length = static_cast<std::int64_t>(prompt.size());
  if (length >= limit)
    return {Code::kInvalidArgument, "prompt",
            "has " + std::to_string(length) + " tokens; the limit of " + std::to_string(limit) +
                " tokens of context leaves room for a prompt of " + std::to_string(limit - 1)};
  for (std::size_t i = 0; i < prompt.size(); ++i)
    if (prompt[i] < 0 || prompt[i] >= config_.vocab_size)
      return {Code::kInvalidArgument, "prompt",
              "token " + std::to_string(i) + " is " + std::to_string(prompt[i]) +
                  ", must be from 0 to " + std::to_string(config_.vocab_size - 1)};
  return ok_status();
}

Status Generator::step(std::span<const std::int32_t> tokens, std::int64_t start, bool wanted,
                       const GenerateOptions& options, cpu::Traffic& traffic) {
  const std::int64_t end = start + static_cast<std::int64_t>(tokens.size());
  const std::int64_t needed = (end + m3::kPageTokens - 1) / m3::kPageTokens;
  if (!pages_.extend(table_, needed))
    return {Code::kResourceExhausted, "caches",
            "hold " + std::to_string(pool_.pages()) + " pages, the sequence needs " +
                std::to_string(needed)};
  cpu::StepSequence sequence;
  sequence.tokens = tokens;
  sequence.start = start;
  sequence.pages = table_;
  sequence.logit_rows = wanted ? 1 : 0;
  sequence.greedy = options.sampling.temperature == 0;
  ML_RETURN_IF_ERROR(native_.step({&sequence, 1}, pool_, logits_, nullptr));
  traffic += native_.last_traffic();
  return options.still_valid ? options.still_valid() : ok_status();
}

Result<GenerateReport> Generator::run(std::span<const std::int32_t> prompt,
                                      const GenerateOptions& options, std::int64_t limit,
                                      const TokenCallback& on_token) {
  GenerateReport report;
  report.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  const auto prefill_start = Clock::now();
  for (std::int64_t begin = 0; begin < report.prompt_tokens; begin += options.prefill_chunk) {
    const std::int64_t count = std::min(options.prefill_chunk, report.prompt_tokens - begin);
    const bool last = begin + count == report.prompt_tokens;
    ML_RETURN_IF_ERROR(
        step(prompt.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
             begin, last, options, report.prefill));
  }
  report.prefill_seconds = seconds_since(prefill_start);

  const auto decode_start = Clock::now();
  std::int64_t length = report.prompt_tokens;
  while (true) {
    std::int32_t id = 0;
    if (options.sampling.temperature == 0) {
      id = native_.greedy_ids().front();
    } else {
      ML_ASSIGN_OR_RETURN(id, sample_token(logits_, options.sampling, length));
    }
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end()) {
      report.finish = Finish::kStop;
      break;
    }
    ++report.generated_tokens;
    if (!on_token(id)) {
      report.finish = Finish::kCancelled;
      break;
    }
    ++length;
    if (report.generated_tokens >= options.max_tokens || length >= limit) {
      report.finish = Finish::kLength;
      break;
    }
    ML_RETURN_IF_ERROR(step({&id, 1}, length - 1, true, options, report.decode));
    ++report.decode_steps;
    ++report.decode_tokens;
  }
  report.decode_seconds = seconds_since(decode_start);
  return report;
}

Result<GenerateReport> Generator::generate(std::span<const std::int32_t> prompt,
                                           const GenerateOptions& options,
                                           const TokenCallback& on_token) {
  std::int64_t limit = std::min(config_.max_positions, pool_.pages() * m3::kPageTokens);
  if (options.max_context > 0) limit = std::min(limit, options.max_context);
  ML_RETURN_IF_ERROR(check(prompt, options, limit));
  Result<GenerateReport> report = run(prompt, options, limit, on_token);
  pages_.release(table_);
  return report;
}

}  // namespace monolayer::engine

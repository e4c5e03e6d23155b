#include "engine/step_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "backend/cpu/stream.h"
#include "engine/bench_batch.h"
#include "engine/native_run.h"

namespace monolayer::engine {
namespace {

using Clock = std::chrono::steady_clock;

class StepTimer {
 public:
  StepTimer(const OpenModel& model, NativeRun& run, cpu::ReadStream& stream)
      : model_(model), run_(run), stream_(stream) {}

  Result<StepResult> time(const std::string& kind, std::int64_t rows, std::int64_t context,
                          std::int64_t new_tokens, std::int64_t repeats) {
    BenchBatch batch(rows, context, new_tokens);
    std::vector<double> seconds, rates, bytes;
    std::vector<float> logits;
    for (std::int64_t i = -1; i < repeats; ++i) {  // the first step warms up
      batch.draw_tokens(model_.config.vocab_size, state_);
      const auto start = Clock::now();
      ML_RETURN_IF_ERROR(run_.native().step(batch.sequences, run_.pool(), logits, nullptr));
      const double taken = std::chrono::duration<double>(Clock::now() - start).count();
      const double rate = stream_.pass();
      if (i < 0) continue;
      seconds.push_back(taken);
      rates.push_back(rate);
      bytes.push_back(static_cast<double>(run_.native().last_traffic().total()));
    }
    StepResult result;
    result.kind = kind;
    result.context = context;
    result.rows = rows;
    result.threads = run_.team().size();
    result.kernel = std::string(run_.tiles().name);
    result.seconds = bench_median(seconds);
    result.tokens_per_second = static_cast<double>(rows * new_tokens) / result.seconds;
    result.bytes = static_cast<std::int64_t>(bench_median(bytes));
    result.bytes_per_second = static_cast<double>(result.bytes) / result.seconds;
    result.stream_bytes_per_second = bench_median(rates);
    return result;
  }

 private:
  const OpenModel& model_;
  NativeRun& run_;
  cpu::ReadStream& stream_;
  std::uint64_t state_ = 1;
};

std::int64_t largest(const std::vector<std::int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

}  // namespace

Status bench_steps(const OpenModel& model, const StepBenchOptions& options,
                   const StepResultCallback& on_result) {
  const std::int64_t page = m3::kPageTokens;
  const std::int64_t decode_pages =
      (largest(options.contexts) + page) / page * largest(options.rows);
  const std::int64_t prefill_pages = (largest(options.prefills) + page - 1) / page;
  for (const std::int64_t threads : options.threads) {
    NativeRunOptions run_options;
    run_options.threads = static_cast<int>(threads);
    run_options.cache_types = options.cache_types;
    run_options.context_tokens = std::max({decode_pages, prefill_pages, std::int64_t{1}}) * page;
    run_options.context_flag = "contexts times rows";
    run_options.tiles = options.tiles;
    run_options.path = options.path;
    run_options.ranks = options.ranks;
    ML_ASSIGN_OR_RETURN(const auto run, NativeRun::load(model, run_options));
    // Bytes that are a small finite number in BF16 and in E4M3, and make every page resident.
    std::memset(run->pool().memory(), 0x3c, run->pool().bytes());
    ML_ASSIGN_OR_RETURN(const auto stream,
                        cpu::ReadStream::create(run->team(), cpu::StreamEffort::kThorough));
    StepTimer timer(model, *run, *stream);
    for (const std::int64_t rows : options.rows)
      for (const std::int64_t context : options.contexts) {
        ML_ASSIGN_OR_RETURN(const StepResult result,
                            timer.time("decode", rows, context, 1, options.repeats));
        on_result(result);
      }
    for (const std::int64_t length : options.prefills) {
      ML_ASSIGN_OR_RETURN(
          const StepResult result,
          timer.time("prefill", 1, 0, length, std::min<std::int64_t>(options.repeats, 3)));
      on_result(result);
    }
  }
  return ok_status();
}

}  // namespace monolayer::engine

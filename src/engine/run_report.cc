#include "engine/run_report.h"

#include <algorithm>
#include <cstdio>
#include <span>

#include <unistd.h>

#include "backend/cpu/stream.h"
#include "engine/memory_check.h"

namespace monolayer::engine {
namespace {

constexpr double kLowShare = 0.30;

constexpr std::int64_t kStreamBytes = std::int64_t{256} << 20;

// At most 1 GiB of the largest file of weights, resident after a run.
std::span<const std::byte> largest_file(const Checkpoint& checkpoint) {
  std::span<const std::byte> largest;
  for (const SafetensorsFile& file : checkpoint.files()) {
    if (file.mapping().size() > largest.size()) largest = file.mapping().bytes();
  }
  return largest.first(std::min(largest.size(), std::size_t{1} << 30));
}

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    default:
      return "cancelled";
  }
}

// The path of decode steps.
const char* path_name(const RunReport& report) { return report.paths.mono > 0 ? "mono" : "native"; }

// Why the path that ran is the one that ran.
std::string path_reason(const RunReport& report) {
  if (report.requested_path == "native") return "as asked";
  if (report.paths.mono == 0) return report.paths.why_native;
  std::string text = std::to_string(report.paths.mono) + " of " +
                     std::to_string(report.paths.mono + report.paths.native) + " steps";
  if (report.paths.native > 0) text += "; the rest native: " + report.paths.why_native;
  return text;
}

std::string rate(double bytes_per_second) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB/s", bytes_per_second / 1e9);
  return text;
}

std::string fixed(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace

double RunReport::prefill_tokens_per_second() const {
  return ratio(static_cast<double>(generation.prompt_tokens), generation.prefill_seconds);
}
double RunReport::decode_tokens_per_second() const {
  return ratio(static_cast<double>(generation.decode_tokens), generation.decode_seconds);
}
double RunReport::bytes_per_token() const {
  return ratio(static_cast<double>(generation.decode.total()),
               static_cast<double>(generation.decode_tokens));
}
double RunReport::decode_bytes_per_second() const {
  return ratio(static_cast<double>(generation.decode.total()), generation.decode_seconds);
}
double RunReport::stream_share() const {
  return ratio(decode_bytes_per_second(), stream_bytes_per_second);
}

RunReport run_report(std::unique_ptr<OpenModel> model, std::unique_ptr<NativeRun> run,
                     const GenerateReport& generation) {
  RunReport report;
  report.kernel = std::string(run->tiles().name);
  report.best_kernel = &run->tiles() == cpu::available_tiles().front();
  report.kernel_family = run->kernel_family();
  report.threads = run->team().size();
  report.threads_note = std::string(run->team().describe());
  report.generation = generation;
  report.paths = run->native().paths();
  report.weight_file_bytes = static_cast<std::int64_t>(model->checkpoint.file_bytes());
  report.last_level_cache_bytes = std::max<long>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  const std::unique_ptr<cpu::ThreadTeam> team = run->release_team();
  run.reset();
  const std::span<const std::byte> weights = largest_file(model->checkpoint);
  if (static_cast<std::int64_t>(weights.size()) >=
      std::max(kStreamBytes, 4 * report.last_level_cache_bytes)) {
    report.stream_bytes_per_second = cpu::measure_stream(*team, weights);
    return report;
  }
  model.reset();
  const Result<double> stream = cpu::measure_stream(*team, cpu::StreamEffort::kQuick);
  if (stream.ok()) report.stream_bytes_per_second = *stream;
  return report;
}

std::string slow_reason(const RunReport& report) {
  if (report.backend == "cuda") return "";  // counts no traffic
  if (report.generation.decode_tokens == 0 || report.stream_share() >= kLowShare) return "";
  if (report.kernel == "scalar") return "the scalar kernels ran; a vector variant is missing here";
  if (!report.best_kernel) return "a slower kernel variant was chosen";
  if (report.bytes_per_token() < 64e6)
    return "the model is small: a token reads only " +
           format_bytes(static_cast<std::int64_t>(report.bytes_per_token())) +
           ", so waiting between stages outweighs reading";
  if (report.weight_file_bytes < report.last_level_cache_bytes)
    return "the model fits in the processor's cache, which the stream figure does not describe";
  if (report.threads == 1) return "one thread ran";
  return "other programs may be using the processor (" + report.threads_note + ")";
}

nlohmann::json run_report_json(const RunReport& report) {
  const GenerateReport& g = report.generation;
  const auto traffic = [](const cpu::Traffic& t) {
    return nlohmann::json{{"weights", t.weights},
                          {"kv_read", t.kv_read},
                          {"index_read", t.index_read},
                          {"cache_written", t.cache_written}};
  };
  return {{"path", path_name(report)},
          {"path_reason", path_reason(report)},
          {"mono_steps", report.paths.mono},
          {"native_steps", report.paths.native},
          {"backend", report.backend},
          {"tensor_parallel_size", report.ranks},
          {"kernel", report.kernel},
          {"kernel_family", report.kernel_family},
          {"threads", report.threads},
          {"finish_reason", finish_name(g.finish)},
          {"prompt_tokens", g.prompt_tokens},
          {"generated_tokens", g.generated_tokens},
          {"prefill_seconds", g.prefill_seconds},
          {"decode_seconds", g.decode_seconds},
          {"prefill_tokens_per_second", report.prefill_tokens_per_second()},
          {"decode_tokens_per_second", report.decode_tokens_per_second()},
          {"bytes_per_token", report.bytes_per_token()},
          {"decode_bytes_per_second", report.decode_bytes_per_second()},
          {"read_stream_bytes_per_second", report.stream_bytes_per_second},
          {"share_of_read_stream", report.stream_share()},
          {"prefill_bytes", traffic(g.prefill)},
          {"decode_bytes", traffic(g.decode)},
          {"warning", slow_reason(report)}};
}

std::string run_report_text(const RunReport& report) {
  const GenerateReport& g = report.generation;
  std::string text = "path: ";
  text += path_name(report);
  text += " on " + report.backend + " (" + path_reason(report) + ")";
  if (report.backend == "cpu") {
    text += ", " + report.kernel + " kernels, " + std::to_string(report.threads) +
            (report.threads == 1 ? " thread" : " threads");
  }
  if (report.ranks > 1) text += " over " + std::to_string(report.ranks) + " ranks";
  if (!report.kernel_family.empty()) text += ", " + report.kernel_family;
  text += '\n';
  text += "prompt: " + std::to_string(g.prompt_tokens) + " tokens, " +
          fixed(report.prefill_tokens_per_second(), 1) +
          " tokens/s; generated: " + std::to_string(g.generated_tokens) + " tokens, " +
          fixed(report.decode_tokens_per_second(), 1) + " tokens/s (" + finish_name(g.finish) +
          ")\n";
  if (g.decode_tokens > 0 && report.backend == "cpu") {
    text += "decode: " + format_bytes(static_cast<std::int64_t>(report.bytes_per_token())) +
            " per token, " + rate(report.decode_bytes_per_second()) + ", " +
            fixed(100 * report.stream_share(), 1) + " % of this machine's read stream of " +
            rate(report.stream_bytes_per_second) + "\n";
  }
  const std::string reason = slow_reason(report);
  if (!reason.empty())
    text += "warning: decoding stayed under 30 % of the read stream: " + reason + "\n";
  return text;
}

}  // namespace monolayer::engine

#include "server/metrics.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>

namespace monolayer::server {
namespace {

std::vector<double> seconds_bounds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
}
std::vector<double> token_bounds() {
  return {1, 8, 32, 128, 512, 2048, 8192, 32768, 131072, 524288, 1048576};
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

std::string head(const std::string& name, const std::string& help, const char* type) {
  return "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

std::string single(const std::string& name, const std::string& help, const char* type,
                   const std::string& labels, double value) {
  return head(name, help, type) + name + "{" + labels + "} " + number(value) + "\n";
}

double between(engine::RequestTimes::Clock::time_point a,
               engine::RequestTimes::Clock::time_point b) {
  return std::max(0.0, std::chrono::duration<double>(b - a).count());
}

}  // namespace

void Histogram::observe(double value, std::int64_t times) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<std::size_t>(at - bounds_.begin())] += times;
  sum_ += value * static_cast<double>(times);
  count_ += times;
}

std::string Histogram::text(const std::string& name, const std::string& help,
                            const std::string& labels) const {
  std::string out = head(name, help, "histogram");
  std::int64_t below = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < bounds_.size() ? number(bounds_[i]) : "+Inf";
    out.append(name).append("_bucket{").append(labels).append(",le=\"").append(bound);
    out.append("\"} ").append(std::to_string(below)).append("\n");
  }
  out += name + "_sum{" + labels + "} " + number(sum_) + "\n";
  out += name + "_count{" + labels + "} " + std::to_string(count_) + "\n";
  return out;
}

Metrics::Metrics(const std::string& model_name)
    : first_token_(seconds_bounds()),
      inter_token_(seconds_bounds()),
      whole_(seconds_bounds()),
      queue_(seconds_bounds()),
      prefill_(seconds_bounds()),
      decode_(seconds_bounds()),
      prompt_(token_bounds()),
      generation_(token_bounds()) {
  std::string escaped;
  for (const char c : model_name) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  labels_ = "model_name=\"" + escaped + "\",engine=\"0\"";
}

void Metrics::tokens(std::int64_t count, bool first, double seconds_since_last) {
  if (count == 0) return;
  if (first) {
    first_token_.observe(seconds_since_last);
  } else {
    inter_token_.observe(seconds_since_last / static_cast<double>(count), count);
  }
}

void Metrics::finished(const engine::RequestOutput& output, std::int64_t prompt_tokens,
                       std::int64_t generated) {
  const engine::RequestTimes& t = output.times;
  whole_.observe(between(t.arrival, t.last_token));
  prompt_.observe(static_cast<double>(prompt_tokens));
  generation_.observe(static_cast<double>(generated));
  if (t.first_scheduled.time_since_epoch().count() == 0) return;
  queue_.observe(between(t.arrival, t.first_scheduled));
  if (t.first_token.time_since_epoch().count() == 0) return;
  prefill_.observe(between(t.first_scheduled, t.first_token));
  decode_.observe(between(t.first_token, t.last_token));
}

void Metrics::speculation(const engine::SpeculationStats& s, std::string& out) const {
  if (s.tokens == 0) return;
  const auto count = [&](const std::string& name, const char* help, std::int64_t value) {
    out += single(name, help, "counter", labels_, static_cast<double>(value));
  };
  const auto ratio = [](std::int64_t a, std::int64_t b) {
    return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0.0;
  };
  const auto labelled = [&](const std::string& name, const char* help, const char* label,
                            std::span<const std::int64_t> values) {
    out += head(name, help, "counter");
    for (std::size_t i = 0; i < values.size(); ++i)
      out += name + "{" + labels_ + "," + label + "=\"" + std::to_string(i) + "\"} " +
             std::to_string(values[i]) + "\n";
  };
  const auto positions = static_cast<std::size_t>(s.tokens);
  const std::span<const std::int64_t> at(s.accepted_at), steps(s.steps_accepting);
  count("vllm:spec_decode_num_drafts_total", "Steps of a sequence with guesses.", s.steps);
  count("vllm:spec_decode_num_draft_tokens_total", "Guesses.", s.guesses);
  count("vllm:spec_decode_num_accepted_tokens_total", "Guesses accepted.", s.accepted);
  labelled("vllm:spec_decode_num_accepted_tokens_per_pos_total", "Guesses accepted, by position.",
           "position", at.first(positions));
  count("atom:mtp_draft_tokens_total", "Guesses.", s.guesses);
  count("atom:mtp_accepted_tokens_total", "Guesses accepted.", s.accepted);
  labelled("atom:mtp_decode_steps_total", "Steps by how many guesses were accepted.",
           "accepted_tokens", steps.first(positions + 1));
  out += single("atom:mtp_acceptance_rate", "Share of guesses accepted.", "gauge", labels_,
                ratio(s.accepted, s.guesses));
  out += single("atom:mtp_average_tokens_per_forward", "Tokens of a step with guesses.", "gauge",
                labels_, s.steps > 0 ? 1 + ratio(s.accepted, s.steps) : 0);
  out += single("monolayer:spec_decode_synthetic", "1: acceptance is drawn, text is meaningless.",
                "gauge", labels_, s.synthetic ? 1 : 0);
  count("monolayer:spec_decode_failures_total", "Sequences whose draft was switched off.",
        s.failures);
}

std::string Metrics::text(const engine::EngineStats& s, const dispatch::StepCounters& paths,
                          std::int64_t connections) const {
  std::string out;
  const auto real = [](std::int64_t v) { return static_cast<double>(v); };
  const auto gauge = [&](const char* name, const char* help, double value) {
    out += single(name, help, "gauge", labels_, value);
  };
  const auto counter = [&](const char* name, const char* help, std::int64_t value) {
    out += single(name, help, "counter", labels_, real(value));
  };
  const double used = s.blocks_total > 0 ? real(s.blocks_used) / real(s.blocks_total) : 0;
  gauge("vllm:num_requests_running", "Requests in the running batch.", real(s.running));
  gauge("vllm:num_requests_waiting", "Requests in the queue.", real(s.waiting));
  gauge("vllm:kv_cache_usage_perc", "Share of the cache blocks held, 0 to 1.", used);
  counter("vllm:num_preemptions_total", "Sequences sent back to the queue.", s.preemptions);
  counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.", s.prompt_tokens);
  counter("vllm:generation_tokens_total", "Tokens drawn.", s.generated_tokens);
  counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up.", s.prefix_queries);
  counter("vllm:prefix_cache_hits_total", "Prompt tokens found.", s.prefix_hits);
  out += head("vllm:prompt_tokens_by_source_total", "Prompt tokens by where they came from.",
              "counter");
  const std::int64_t sources[] = {s.prefix_hits, 0, s.prompt_tokens - s.prefix_hits};
  const char* source_names[] = {"local_cache_hit", "external_kv_transfer", "local_compute"};
  for (int i = 0; i < 3; ++i)
    out += "vllm:prompt_tokens_by_source_total{" + labels_ + ",source=\"" + source_names[i] +
           "\"} " + std::to_string(sources[i]) + "\n";
  out += head("vllm:request_success_total", "Requests by how they ended.", "counter");
  for (int i = 0; i < 4; ++i)
    out += "vllm:request_success_total{" + labels_ + ",finished_reason=\"" +
           std::string(engine::finish_name(static_cast<engine::FinishReason>(i))) + "\"} " +
           std::to_string(s.finished[i]) + "\n";
  out += first_token_.text("vllm:time_to_first_token_seconds", "Arrival to first token.", labels_);
  out += inter_token_.text("vllm:inter_token_latency_seconds", "Between tokens.", labels_);
  out += whole_.text("vllm:e2e_request_latency_seconds", "Arrival to last token.", labels_);
  out += queue_.text("vllm:request_queue_time_seconds", "Arrival to first step.", labels_);
  out += prefill_.text("vllm:request_prefill_time_seconds", "First step to first token.", labels_);
  out += decode_.text("vllm:request_decode_time_seconds", "First to last token.", labels_);
  out += prompt_.text("vllm:request_prompt_tokens", "Prompt lengths.", labels_);
  out += generation_.text("vllm:request_generation_tokens", "Answer lengths.", labels_);

  speculation(s.speculation, out);
  gauge("atom:requests_running", "Requests in the running batch.", real(s.running));
  gauge("atom:requests_waiting", "Requests in the queue.", real(s.waiting));
  gauge("atom:kv_cache_blocks_used", "Blocks held.", real(s.blocks_used));
  gauge("atom:kv_cache_blocks_free", "Blocks nobody holds.", real(s.blocks_total - s.blocks_used));
  gauge("atom:kv_cache_blocks_total", "Blocks of the pool.", real(s.blocks_total));
  gauge("atom:kv_cache_blocks_indexed", "Blocks with findable content.", real(s.blocks_indexed));
  gauge("atom:kv_cache_usage_ratio", "Share of the cache blocks held, 0 to 1.", used);
  gauge("atom:prefix_cache_hit_ratio", "Share of looked-up prompt tokens found.",
        s.prefix_queries > 0 ? real(s.prefix_hits) / real(s.prefix_queries) : 0);
  counter("atom:requests_finished_total", "Requests that ended.",
          s.finished[0] + s.finished[1] + s.finished[2] + s.finished[3]);
  counter("atom:prompt_tokens_total", "Prompt tokens of admitted requests.", s.prompt_tokens);
  counter("atom:generation_tokens_total", "Tokens drawn.", s.generated_tokens);
  counter("atom:preemptions_total", "Sequences sent back to the queue.", s.preemptions);
  counter("atom:prefix_cache_cached_tokens_total", "Prompt tokens found.", s.prefix_hits);
  counter("atom:prefix_cache_full_tokens_total", "Prompt tokens looked up.", s.prefix_queries);

  counter("monolayer:engine_steps_total", "Steps of the engine.", s.steps);
  counter("monolayer:engine_step_tokens_total", "Rows of all steps.", s.step_tokens);
  counter("monolayer:native_steps_total", "Forward passes on the native chain.", paths.native);
  counter("monolayer:fused_steps_total", "Forward passes on the fused path.", paths.mono);
  out += head("monolayer:native_steps_by_reason_total",
              "Forward passes on the native chain by the rule that kept them there.", "counter");
  for (const auto& [reason, count] : paths.reasons)
    out += "monolayer:native_steps_by_reason_total{" + labels_ + ",reason=\"" +
           std::string(reason) + "\"} " + std::to_string(count) + "\n";
  gauge("monolayer:http_connections", "Open connections.", real(connections));
  out += head("monolayer:http_responses_total", "Answers by status class.", "counter");
  for (int i = 1; i < 6; ++i)
    out += "monolayer:http_responses_total{" + labels_ + ",class=\"" + std::to_string(i) +
           "xx\"} " + std::to_string(responses_[i]) + "\n";
  return out;
}

}  // namespace monolayer::server

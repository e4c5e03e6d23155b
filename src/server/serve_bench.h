// A client that loads an OpenAI server and times its streams.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/status.h"

namespace monolayer::server {

struct ServeBenchOptions {
  std::string host = "127.0.0.1", model, api_key;
  std::int64_t port = 8000;
  std::int64_t requests = 64;
  std::int64_t concurrency = 8;  // streams at once; with a rate, the most of them
  double rate = 0;               // requests a second, exponentially spaced; 0: one after the other
  std::int64_t prompt_tokens = 128, max_tokens = 64;
  std::int64_t vocab = 1000;  // random prompt ids are below it
  std::uint64_t seed = 0;
  double timeout_seconds = 300;  // a connection, request or answer that stands still is a failure
};

// One request: seconds since the bench began.
struct StreamTimes {
  double planned = 0;  // when it was due; with a rate, waiting for a free stream counts
  double sent = 0, first = 0, last = 0;
  std::vector<double> gaps;                    // between chunks with text
  std::int64_t tokens = 0, prompt_tokens = 0;  // as the server counts them
  std::string error;                           // empty: complete
};

struct Percentiles {
  std::int64_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, largest = 0;
};
// Nearest rank; zeros for no values.
Percentiles percentiles(std::vector<double> values);

struct ServeBenchReport {
  double seconds = 0;
  std::int64_t completed = 0, failed = 0, tokens = 0, prompt_tokens = 0;
  // Time to the first text, between chunks, per token after the first, whole request; seconds.
  Percentiles ttft, itl, tpot, e2e;
  std::vector<StreamTimes> streams;
};
ServeBenchReport summarize(std::vector<StreamTimes> streams, double seconds);

// kIoError if the server cannot be reached at all, kResourceExhausted if not all streams can be
// had; failures of single requests are in the report.
Result<ServeBenchReport> bench_serve(const ServeBenchOptions& options);

nlohmann::json report_json(const ServeBenchOptions& options, const ServeBenchReport& report);
// Distributions of the four times, and when each stream ran.
std::string report_svg(const ServeBenchOptions& options, const ServeBenchReport& report);

}  // namespace monolayer::server

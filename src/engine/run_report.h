// What a generation cost, against what this machine could do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/generator.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"

namespace monolayer::engine {

struct RunReport {
  std::string requested_path = "auto";
  std::string backend = "cpu";
  std::string kernel;         // instruction set of the tile functions
  std::string kernel_family;  // of a device, and why; empty where there is only one
  std::string threads_note;
  int threads = 0;
  cpu::PathCounts paths;  // steps by the way they went
  int ranks = 1;
  GenerateReport generation;
  double stream_bytes_per_second = 0;  // of the same threads, measured afterwards
  std::int64_t weight_file_bytes = 0, last_level_cache_bytes = 0;
  bool best_kernel = true;  // no faster variant exists for this build and machine

  double prefill_tokens_per_second() const;
  double decode_tokens_per_second() const;
  double bytes_per_token() const;  // of a decode step
  double decode_bytes_per_second() const;
  double stream_share() const;  // of decoding; 0 without a decode step
};

// Takes model and run apart, measures the read stream for some hundredths of a second and gathers
// the rest. The stream is measured over the weights where they are large enough, else over a buffer
// of at most 64 MiB, which is not resident at the same time as the model.
RunReport run_report(std::unique_ptr<OpenModel> model, std::unique_ptr<NativeRun> run,
                     const GenerateReport& generation);

nlohmann::json run_report_json(const RunReport& report);
// Lines for a person, the last one a warning when decoding stayed under 30 % of the stream, with
// the likeliest reason.
std::string run_report_text(const RunReport& report);

// The reason for a low share; empty when the share is 30 % or more, or nothing was decoded.
std::string slow_reason(const RunReport& report);

}  // namespace monolayer::engine
